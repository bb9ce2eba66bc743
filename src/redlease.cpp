#include <redlease/src.hpp>
