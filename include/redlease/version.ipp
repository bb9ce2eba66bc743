#ifndef REDLEASE_VERSION_IPP
#define REDLEASE_VERSION_IPP

#include <redlease/version.hpp>

namespace redlease::inline v1 {

std::string_view version() noexcept { return header_version; }

}  // namespace redlease::inline v1

#endif
