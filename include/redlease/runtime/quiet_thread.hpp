#ifndef REDLEASE_RUNTIME_QUIET_THREAD_HPP
#define REDLEASE_RUNTIME_QUIET_THREAD_HPP

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace redlease::inline v1::runtime {

/// A thread that the application's signal handlers never run on: they could hold it up. `name` has
/// up to 15 characters. Throws std::system_error.
template <class Function>
std::thread start_quiet_thread(const char* name, Function&& function) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    sigset_t& mask;
    ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  std::thread thread{std::forward<Function>(function)};
  (void)::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace redlease::inline v1::runtime

#endif
