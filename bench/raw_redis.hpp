// The rival: hiredis as one would use it directly, one blocking connection per thread.
#ifndef REDLEASE_BENCH_RAW_REDIS_HPP
#define REDLEASE_BENCH_RAW_REDIS_HPP

#include <hiredis/hiredis.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace redlease::bench {

class RawRedis {
 public:
  RawRedis(const std::string& host, int port);

  struct FreeReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  // Throws on any error, error replies included.
  Reply command(std::initializer_list<std::string_view> arguments);
  // For pipelining: queues a command, writes what is queued, and takes the next reply.
  void append(std::initializer_list<std::string_view> arguments);
  void flush();
  Reply next_reply();
  // Makes a next_reply() throw that another thread is in, or calls later.
  void shut_down();

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  std::unique_ptr<redisContext, FreeContext> context_;
};

// Seconds of processor time that the server has used.
double server_cpu_seconds(RawRedis& redis);

// What the server has run of one command so far, by itself or in scripts.
struct CommandStats {
  double calls = 0;
  double seconds = 0;
};
CommandStats command_stats(RawRedis& redis, const std::string& command);

}  // namespace redlease::bench

#endif
