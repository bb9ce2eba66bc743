// Header-only use: the library's bodies, in exactly one source.
#include <redlease/src.hpp>
