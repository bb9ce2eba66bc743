// Needs no server: nobody listens at that address.
#include <redlease/redlease.hpp>

#include <iostream>

int main() {
  std::cout << "redlease " << redlease::version() << '\n';
  try {
    redlease::Client client{"unix:///nowhere/redis.sock"};
    if (client.try_acquire("order:42")) return 1;
  } catch (const redlease::Error& error) {
    std::cout << error.what() << '\n';
    return error.code() == redlease::errc::unavailable ? 0 : 2;
  }
  return 3;
}
