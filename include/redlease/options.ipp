#ifndef REDLEASE_OPTIONS_IPP
#define REDLEASE_OPTIONS_IPP

#include <stdexcept>

#include <fmt/format.h>
#include <redlease/clock.hpp>
#include <redlease/error.hpp>
#include <redlease/options.hpp>

namespace redlease::inline v1::detail {
namespace {

using namespace std::chrono_literals;

// A time-out must fit into what the system's calls count in; nobody waits for longer on purpose.
constexpr Duration longest_timeout = std::chrono::hours{24};
constexpr Duration longest_ttl = std::chrono::hours{24 * 3650};
constexpr std::size_t most_connections = 64;

[[noreturn]] void refuse(std::string_view field, std::string_view value, std::string_view rule) {
  throw std::invalid_argument(fmt::format("{} = {}: {}", field, value, rule));
}

void check_timeout(std::string_view field, Duration value) {
  if (value < Duration{1ms}) refuse(field, to_text(value), "must be at least 1ms");
  if (value > longest_timeout) refuse(field, to_text(value), "must be at most 24h");
}

void refuse_unsupported(std::string_view field, std::string_view value) {
  refuse(field, value, "is not supported by this version of redlease");
}

}  // namespace

std::string to_text(Duration d) {
  const auto ns = d.value();
  if (ns == std::chrono::nanoseconds::max()) return "(too long to count)";
  if (ns == std::chrono::nanoseconds::min()) return "(not a number, or too long to count)";
  if (ns % 1s == 0s) return fmt::format("{}s", ns / 1s);
  if (ns % 1ms == 0s) return fmt::format("{}ms", ns / 1ms);
  if (ns % 1us == 0s) return fmt::format("{}us", ns / 1us);
  return fmt::format("{}ns", ns.count());
}

void check(const ClientOptions& options) {
  check_timeout("connect_timeout", options.connect_timeout);
  check_timeout("command_timeout", options.command_timeout);
  if (options.database && (*options.database < 0 || *options.database > 1'000'000)) {
    refuse("database", std::to_string(*options.database), "must be from 0 to 1000000");
  }
  for (const char c : options.client_name) {
    if (c < '!' || c > '~') {
      refuse("client_name", quote(options.client_name), "must be of printable ASCII, no blanks");
    }
  }
  if (options.max_connections < 1 || options.max_connections > most_connections) {
    refuse("max_connections", std::to_string(options.max_connections), "must be from 1 to 64");
  }
}

void check_ttl(const char* field, Duration ttl) {
  if (ttl < Duration{1ms}) refuse(field, to_text(ttl), "must be at least 1ms");
  if (ttl > longest_ttl) refuse(field, to_text(ttl), "must be at most 10 years (87600h)");
}

namespace {

void check_key_size(std::string_view field, std::string_view key) {
  if (key.size() <= max_key_size) return;
  refuse(field, quote(key), fmt::format("has {} bytes, the limit is {}", key.size(), max_key_size));
}

void check_keeping(const LeaseOptions& options) {
  const auto needs_auto_renew = [&options](std::string_view field,
                                           const std::optional<Duration>& value) {
    if (!value) return;
    if (!options.auto_renew) refuse(field, to_text(*value), "is of no use without auto_renew");
    if (*value < Duration{1ms}) refuse(field, to_text(*value), "must be at least 1ms");
  };
  needs_auto_renew("renew_every", options.renew_every);
  needs_auto_renew("max_hold", options.max_hold);

  const std::chrono::nanoseconds ttl = options.ttl.ceil_ms();
  const auto certain = ttl - drift(ttl);
  const std::chrono::nanoseconds margin = options.safety_margin.value_or(ttl / 10);
  if (options.safety_margin) {
    if (margin < 0ns) refuse("safety_margin", to_text(margin), "must not be negative");
    if (margin >= certain) {
      refuse("safety_margin", to_text(margin),
             fmt::format("must be below 99 % of the ttl ({})", to_text(certain)));
    }
  }
  if (!options.auto_renew) return;
  const std::chrono::nanoseconds every = options.renew_every.value_or(ttl / 3);
  if (every < certain - margin) return;
  const auto limit = fmt::format("below 99 % of the ttl ({})", to_text(certain));
  if (options.renew_every) {
    refuse("renew_every", to_text(every),
           fmt::format("must with the safety_margin ({}{}) be {}", to_text(margin),
                       options.safety_margin ? "" : ", the default", limit));
  }
  refuse("safety_margin", to_text(margin),
         fmt::format("must with the default renew_every (ttl / 3) be {}", limit));
}

}  // namespace

void check(const LeaseOptions& options) {
  check_ttl("ttl", options.ttl);
  check_keeping(options);
  if (!options.fence_key.empty()) {
    if (!options.fencing) {
      refuse("fence_key", quote(options.fence_key), "is of no use without fencing");
    }
    check_key_size("fence_key", options.fence_key);
  }
  if (options.min_replicas != 0) {
    refuse_unsupported("min_replicas", std::to_string(options.min_replicas));
  }
}

void check(const Wait& wait) {
  if (wait.at_most < Duration{0s}) refuse("at_most", to_text(wait.at_most), "must not be negative");
  if (wait.attempts && *wait.attempts < 1) {
    refuse("attempts", std::to_string(*wait.attempts), "must be at least 1");
  }
  if (wait.backoff.min < Duration{1ms}) {
    refuse("backoff.min", to_text(wait.backoff.min), "must be at least 1ms");
  }
  if (wait.backoff.max < wait.backoff.min) {
    refuse("backoff.max", to_text(wait.backoff.max), "must not be below backoff.min");
  }
  if (wait.backoff.max > longest_timeout) {
    refuse("backoff.max", to_text(wait.backoff.max), "must be at most 24h");
  }
  if (wait.order != Order::any && wait.order != Order::fifo) {
    refuse("order", std::to_string(static_cast<int>(wait.order)), "must be any or fifo");
  }
}

void check_key(std::string_view key) {
  if (key.empty()) refuse("key", "''", "must not be empty");
  check_key_size("key", key);
}

void check_key(std::string_view key, const LeaseOptions& options) {
  check_key(key);
  check(options);
  if (key == options.fence_key) {
    refuse("fence_key", quote(options.fence_key), "must not be the lease's own key");
  }
}

void check_keys(const std::vector<std::string>& keys, const LeaseOptions& options) {
  if (keys.empty()) refuse("keys", "{}", "must not be empty");
  if (keys.size() > max_keys) {
    refuse("keys", fmt::format("{{{}, …}}", quote(keys.front())),
           fmt::format("are {}, the limit is {}", keys.size(), max_keys));
  }
  for (const auto& key : keys) check_key(key, options);
}

}  // namespace redlease::inline v1::detail

#endif
