#include "raw_redis.hpp"

#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <stdexcept>

namespace redlease::bench {
namespace {

struct Arguments {
  explicit Arguments(std::initializer_list<std::string_view> from) {
    for (const auto argument : from) {
      texts.at(count) = argument.data();
      sizes.at(count) = argument.size();
      ++count;
    }
  }
  std::array<const char*, 8> texts{};
  std::array<std::size_t, 8> sizes{};
  std::size_t count = 0;
};

double field(const std::string& info, const std::string& name) {
  const auto at = info.find(name + ":");
  if (at == std::string::npos) throw std::runtime_error("INFO has no " + name);
  return std::stod(info.substr(at + name.size() + 1));
}

}  // namespace

RawRedis::RawRedis(const std::string& host, int port) : context_(redisConnect(host.c_str(), port)) {
  if (!context_ || context_->err != 0) {
    throw std::runtime_error(std::string{"connect: "} + (context_ ? context_->errstr : "memory"));
  }
}

RawRedis::Reply RawRedis::command(std::initializer_list<std::string_view> arguments) {
  Arguments a{arguments};
  Reply reply{static_cast<redisReply*>(
      redisCommandArgv(context_.get(), static_cast<int>(a.count), a.texts.data(), a.sizes.data()))};
  if (!reply) throw std::runtime_error(context_->errstr);
  if (reply->type == REDIS_REPLY_ERROR) throw std::runtime_error(reply->str);
  return reply;
}

void RawRedis::append(std::initializer_list<std::string_view> arguments) {
  Arguments a{arguments};
  if (redisAppendCommandArgv(context_.get(), static_cast<int>(a.count), a.texts.data(),
                             a.sizes.data()) != REDIS_OK) {
    throw std::runtime_error(context_->errstr);
  }
}

void RawRedis::flush() {
  for (int done = 0; done == 0;) {
    if (redisBufferWrite(context_.get(), &done) != REDIS_OK) {
      throw std::runtime_error(context_->errstr);
    }
  }
}

RawRedis::Reply RawRedis::next_reply() {
  void* reply = nullptr;
  if (redisGetReply(context_.get(), &reply) != REDIS_OK) throw std::runtime_error(context_->errstr);
  return Reply{static_cast<redisReply*>(reply)};
}

void RawRedis::shut_down() { ::shutdown(context_->fd, SHUT_RDWR); }

double server_cpu_seconds(RawRedis& redis) {
  const std::string info = redis.command({"INFO", "cpu"})->str;
  return field(info, "used_cpu_sys") + field(info, "used_cpu_user");
}

CommandStats command_stats(RawRedis& redis, const std::string& command) {
  const std::string info = redis.command({"INFO", "commandstats"})->str;
  const auto at = info.find("cmdstat_" + command + ":");
  if (at == std::string::npos) return {};  // never called
  CommandStats stats;
  if (std::sscanf(info.c_str() + info.find(':', at), ":calls=%lf,usec=%lf", &stats.calls,
                  &stats.seconds) != 2) {
    throw std::runtime_error("INFO commandstats is of an unexpected form");
  }
  stats.seconds *= 1e-6;
  return stats;
}

}  // namespace redlease::bench
