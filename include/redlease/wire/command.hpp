#ifndef REDLEASE_WIRE_COMMAND_HPP
#define REDLEASE_WIRE_COMMAND_HPP

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace redlease::inline v1::wire {

/// "*3\r\n", "$5\r\n": what stands before the arguments of a request, and before each of them.
class CommandHeader {
 public:
  CommandHeader(char type, std::size_t number) noexcept {
    text_[0] = type;
    char* end = std::to_chars(text_.data() + 1, text_.data() + text_.size() - 2, number).ptr;
    *end++ = '\r';
    *end++ = '\n';
    size_ = static_cast<std::size_t>(end - text_.data());
  }
  std::string_view text() const noexcept { return {text_.data(), size_}; }

 private:
  std::array<char, 24> text_;  // written by the constructor, as far as it is read
  std::size_t size_;
};

/// Appends a request to a string, argument by argument; their number must be known.
class CommandWriter {
 public:
  CommandWriter(std::string& out, std::size_t arguments) : out_(out) {
    out_ += CommandHeader{'*', arguments}.text();
  }
  void add(std::string_view argument) {
    out_ += CommandHeader{'$', argument.size()}.text();
    out_ += argument;
    out_ += "\r\n";
  }
  void add(std::uint64_t number) {
    std::array<char, 24> text;  // NOLINT(cppcoreguidelines-pro-type-member-init): written below
    const char* end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
    add({text.data(), static_cast<std::size_t>(end - text.data())});
  }

 private:
  std::string& out_;
};

/// A request as it goes over the wire: an array of bulk strings, each with its length, so that
/// arguments are binary-safe and nothing in them can become a command. Usual requests fit into
/// the object; longer ones go to the heap.
class Command {
 public:
  Command(std::initializer_list<std::string_view> arguments)
      : Command(std::span<const std::string_view>{arguments.begin(), arguments.size()}, {}) {}

  /// The arguments come in two parts.
  Command(std::span<const std::string_view> first, std::span<const std::string_view> second) {
    const CommandHeader header{'*', first.size() + second.size()};  // fits in any case
    size_ = header.text().copy(short_.data(), short_.size());
    for (const auto argument : first) add(argument);
    for (const auto argument : second) add(argument);
  }

  std::string_view bytes() const noexcept {
    return long_.empty() ? std::string_view{short_.data(), size_} : std::string_view{long_};
  }

 private:
  void add(std::string_view argument) {
    append(CommandHeader{'$', argument.size()}.text());
    append(argument);
    append("\r\n");
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
