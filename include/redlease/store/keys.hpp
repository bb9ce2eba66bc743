#ifndef REDLEASE_STORE_KEYS_HPP
#define REDLEASE_STORE_KEYS_HPP

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlease::inline v1::store {

/// The keys of a lease: mostly one. Several are sorted, and each is there once.
class Keys {
 public:
  explicit Keys(std::string_view key) : one_(key) {}
  explicit Keys(std::vector<std::string> keys) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    one_ = keys.front();
    if (keys.size() > 1)
      several_ = std::make_unique<const std::vector<std::string>>(std::move(keys));
  }

  const std::string& first() const noexcept { return one_; }
  bool several() const noexcept { return several_ != nullptr; }
  std::span<const std::string> all() const noexcept {
    if (several_) return *several_;
    return {&one_, 1};
  }

 private:
  std::string one_;
  std::unique_ptr<const std::vector<std::string>> several_;  // there is room in a lease for one
};

/// A look at the keys of a lease, which somebody else keeps.
class KeyView {
 public:
  KeyView(std::string_view key) noexcept : first_(key) {}
  KeyView(const std::string& key) noexcept : first_(key) {}
  KeyView(const Keys& keys) noexcept : KeyView(keys.all()) {}
  KeyView(std::span<const std::string> keys) noexcept : first_(keys.front()), all_(keys) {}

  std::string_view first() const noexcept { return first_; }
  std::size_t size() const noexcept { return std::max<std::size_t>(all_.size(), 1); }
  bool several() const noexcept { return all_.size() > 1; }
  std::string_view operator[](std::size_t index) const noexcept {
    return index == 0 ? first_ : std::string_view{all_[index]};
  }

 private:
  std::string_view first_;
  std::span<const std::string> all_;
};

/// What a script works on: the keys of a lease, and what lies beside them.
struct ScriptKeys {
  ScriptKeys(std::string_view key) noexcept : keys(key) {}
  ScriptKeys(KeyView lease, std::span<const std::string> others = {}) noexcept
      : keys(lease), beside(others) {}

  KeyView keys;
  std::span<const std::string> beside;
};

/// What is said to a script besides.
class Arguments {
 public:
  Arguments(std::initializer_list<std::string_view> list) noexcept
      : all_(list.begin(), list.size()) {}
  Arguments(const std::vector<std::string_view>& list) noexcept : all_(list) {}
  std::span<const std::string_view> all() const noexcept { return all_; }

 private:
  std::span<const std::string_view> all_;
};

}  // namespace redlease::inline v1::store

#endif
