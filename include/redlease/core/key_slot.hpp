#ifndef REDLEASE_CORE_KEY_SLOT_HPP
#define REDLEASE_CORE_KEY_SLOT_HPP

#include <string>
#include <string_view>

namespace redlease::inline v1::core {

/// The slot of a key in a Redis Cluster, 0 to 16,383: that of its hash tag, if it has one
/// (redis.io, "Redis cluster specification").
unsigned slot_of(std::string_view key) noexcept;

/// The name of something that lies beside a key, in the same slot, whatever the key looks like:
///   order:1      {order:1}:what
///   stock:{tea}  stock:{tea}::what
///   a}b          {N}:a}b:what, with a number N of the key's slot, for a key can't be the tag then
std::string beside(std::string_view key, std::string_view what);

}  // namespace redlease::inline v1::core

#endif
