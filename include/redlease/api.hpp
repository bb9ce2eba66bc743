#ifndef REDLEASE_API_HPP
#define REDLEASE_API_HPP

/// REDLEASE_API marks what a shared library shows to its users; all else in it is hidden. It means
/// something only with the build switch REDLEASE_SHARED, which the CMake target and the .pc file of
/// a shared library set. So a program or plug-in that has redlease inside, from the static library
/// or from headers, doesn't show it on, and two of them may hold different versions.
#ifdef REDLEASE_SHARED
#define REDLEASE_API [[gnu::visibility("default")]]
#else
#define REDLEASE_API
#endif

#endif
