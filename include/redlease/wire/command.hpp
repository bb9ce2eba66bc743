#ifndef REDLEASE_WIRE_COMMAND_HPP
#define REDLEASE_WIRE_COMMAND_HPP

#include <array>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

namespace redlease::inline v1::wire {

/// A request as it goes over the wire: an array of bulk strings, each with its length, so that
/// arguments are binary-safe and nothing in them can become a command. Usual requests fit into
/// the object; longer ones go to the heap.
class Command {
 public:
  Command(std::initializer_list<std::string_view> arguments) {
    header('*', arguments.size());
    for (const auto argument : arguments) {
      header('$', argument.size());
      append(argument);
      append("\r\n");
    }
  }

  std::string_view bytes() const noexcept {
    return long_.empty() ? std::string_view{short_.data(), size_} : std::string_view{long_};
  }

 private:
  void header(char type, std::size_t number) {
    std::array<char, 24> text;  // NOLINT(cppcoreguidelines-pro-type-member-init): written below
    text[0] = type;
    char* end = std::to_chars(text.data() + 1, text.data() + text.size() - 2, number).ptr;
    *end++ = '\r';
    *end++ = '\n';
    append({text.data(), static_cast<std::size_t>(end - text.data())});
  }

  void append(std::string_view text) {
    if (long_.empty()) {
      if (size_ + text.size() <= short_.size()) {
        std::memcpy(short_.data() + size_, text.data(), text.size());
        size_ += text.size();
        return;
      }
      long_.assign(short_.data(), size_);
    }
    long_.append(text);
  }

  std::array<char, 320> short_;  // uninitialised on purpose: a request is built per call
  std::size_t size_ = 0;
  std::string long_;
};

}  // namespace redlease::inline v1::wire

#endif
