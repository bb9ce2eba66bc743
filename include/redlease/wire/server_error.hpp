#ifndef REDLEASE_WIRE_SERVER_ERROR_HPP
#define REDLEASE_WIRE_SERVER_ERROR_HPP

#include <initializer_list>
#include <string>
#include <string_view>

namespace redlease::inline v1::wire {

/// What an error reply means for the one who asked.
enum class ServerError {
  no_script,   ///< the script is not cached: send its text
  wrong_type,  ///< the key holds something else than a string
  transient,   ///< the server's state refuses it now: LOADING, OOM, READONLY, NOREPLICAS, ...
  permanent,   ///< it will go on refusing: NOAUTH, NOPERM, unknown command, ...
};

/// The error's code. A script wraps the error of a command that it called; before Redis 7 as
///     ERR Error running script (call to f_...): @user_script:1: -READONLY You can't write ...
/// and since then as the plain text with " script: <sha>, on @user_script:1." behind it.
std::string_view error_code(std::string_view text) noexcept;

ServerError classify(std::string_view text) noexcept;

/// The text for a message: control characters replaced, cut when long, without the list of
/// arguments that "unknown command" errors repeat (passwords and tokens are among them), and with
/// "***" for the secrets, should a peer repeat them elsewhere.
std::string printable(std::string_view text, std::initializer_list<std::string_view> secrets = {});

}  // namespace redlease::inline v1::wire

#endif
