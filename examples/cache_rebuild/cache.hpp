#ifndef EXAMPLES_CACHE_REBUILD_CACHE_HPP
#define EXAMPLES_CACHE_REBUILD_CACHE_HPP

/// A cache of pages in Redis. It knows nothing of leases; its keys are not theirs.

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cache_rebuild {

using Page = std::shared_ptr<const std::string>;

struct CacheError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What Redis has for an answer, the cache's and the leases'.
inline constexpr std::chrono::milliseconds command_timeout{150};

/// One connection, made when it is needed and after trouble made anew; for one thread at a time.
/// What fails throws CacheError after one `command_timeout` at the latest, and one for connecting.
class Cache {
 public:
  struct Found {
    Page page;
    bool fresh = false;
  };

  /// `url`: redis://host[:port] or unix:///path.
  explicit Cache(std::string url) : url_(std::move(url)) {}

  /// Empty if there is no page.
  std::optional<Found> read(const std::string& key) {
    // The ttl says whether a page is fresh, so no two machines have to agree on the time of day.
    // It is asked for first: a page that is written between the two is then taken for less fresh
    // than it is, and never for fresher.
    append({"PTTL", key});
    append({"GET", key});
    const auto ttl = std::chrono::milliseconds{number(reply())};
    const auto page = reply();
    if (page->type == REDIS_REPLY_NIL) return std::nullopt;
    return Found{std::make_shared<const std::string>(page->str, page->len), ttl > stale_for};
  }

  /// The page is fresh for `fresh_for`, and then of use for `stale_for` if there is no better one.
  void write(const std::string& key, const Page& page) {
    const auto ttl = fmt::format("{}", (fresh_for + stale_for).count());
    append({"SET", key, *page, "PX", ttl});
    reply();
  }

  void remove(const std::string& key) {
    append({"DEL", key});
    reply();
  }

  static constexpr std::chrono::milliseconds fresh_for{800};
  // Longer than the lease of a dead rebuilder lasts, so that readers have something meanwhile.
  static constexpr std::chrono::milliseconds stale_for{3000};

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr timeval time_out{0, std::chrono::microseconds{command_timeout}.count()};
  // A server in trouble is spared: for that long nothing is tried, and commands fail at once.
  static constexpr std::chrono::milliseconds rest{500};

  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
  };
  using Reply = std::unique_ptr<redisReply, Free>;

  static redisContext* connect(const std::string& url) {
    constexpr std::string_view tcp = "redis://";
    constexpr std::string_view local = "unix://";
    if (url.starts_with(local)) {
      return redisConnectUnixWithTimeout(url.c_str() + local.size(), time_out);
    }
    const auto colon = url.find(':', tcp.size());
    const auto port = colon == std::string::npos ? "6379" : url.substr(colon + 1);
    int port_number = 0;
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), port_number);
    if (!url.starts_with(tcp) || parsed.ptr != port.data() + port.size()) {
      throw CacheError{"cache: the URL must be redis://host[:port] or unix:///path"};
    }
    const auto host = url.substr(tcp.size(), colon - tcp.size());
    return redisConnectWithTimeout(host.c_str(), port_number, time_out);
  }

  void ensure_connected() {
    if (context_) return;
    if (Clock::now() < resting_until_) throw CacheError{"cache: Redis had no answer a moment ago"};
    context_.reset(connect(url_));
    if (!context_) throw CacheError{"cache: no memory"};
    check(context_->err == 0);
    check(redisSetTimeout(context_.get(), time_out) == REDIS_OK);
  }

  void append(std::initializer_list<std::string_view> words) {
    ensure_connected();
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const auto word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    check(redisAppendCommandArgv(context_.get(), static_cast<int>(texts.size()), texts.data(),
                                 sizes.data()) == REDIS_OK);
  }

  Reply reply() {
    void* found = nullptr;
    check(redisGetReply(context_.get(), &found) == REDIS_OK);
    Reply reply{static_cast<redisReply*>(found)};
    if (reply->type == REDIS_REPLY_ERROR) fail(reply->str);
    return reply;
  }

  static std::int64_t number(const Reply& reply) {
    if (reply->type != REDIS_REPLY_INTEGER) throw CacheError{"cache: a reply is no number"};
    return reply->integer;
  }

  void check(bool good) {
    if (!good) fail(context_->errstr);
  }

  [[noreturn]] void fail(std::string_view why) {
    const auto message = fmt::format("cache: {}", why);  // `why` may be the context's
    context_.reset();  // a late answer would be taken for the next command's
    resting_until_ = Clock::now() + rest;
    throw CacheError{message};
  }

  const std::string url_;
  std::unique_ptr<redisContext, Free> context_;
  Clock::time_point resting_until_{};
};

}  // namespace cache_rebuild

#endif
