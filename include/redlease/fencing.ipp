#ifndef REDLEASE_FENCING_IPP
#define REDLEASE_FENCING_IPP

#include <ostream>

#include <redlease/fencing.hpp>

namespace redlease::inline v1 {

std::ostream& operator<<(std::ostream& out, FencingToken token) { return out << token.value(); }

}  // namespace redlease::inline v1

#endif
