// Cuts a byte stream into whole RESP values (a request is one, a reply is one).
#ifndef REDLEASE_TESTS_SUPPORT_RESP_FRAMES_HPP
#define REDLEASE_TESTS_SUPPORT_RESP_FRAMES_HPP

#include <optional>
#include <string>

namespace redlease::test {

class RespFrames {
 public:
  // New bytes are appended here.
  std::string& buffer() { return buffer_; }

  // The next whole value. A stream that is not RESP (TLS, inline commands, nonsense) is handed on
  // as it comes from its first foreign byte on.
  std::optional<std::string> next();

 private:
  std::string buffer_;
  bool foreign_ = false;
};

}  // namespace redlease::test

#endif
