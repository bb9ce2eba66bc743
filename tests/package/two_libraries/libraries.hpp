// Two libraries of a program, each of which uses redlease inside.
#ifndef LIBRARIES_HPP
#define LIBRARIES_HPP

#include <system_error>

#define SHOWN [[gnu::visibility("default")]]

SHOWN std::error_code take_order();
SHOWN std::error_code take_stock();

#endif
