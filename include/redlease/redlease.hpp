#ifndef REDLEASE_REDLEASE_HPP
#define REDLEASE_REDLEASE_HPP

/// Everything that a user of redlease needs.

#include <redlease/client.hpp>
#include <redlease/error.hpp>
#include <redlease/fencing.hpp>
#include <redlease/lease.hpp>
#include <redlease/observer.hpp>
#include <redlease/options.hpp>
#include <redlease/single_flight.hpp>
#include <redlease/token.hpp>
#include <redlease/version.hpp>

#endif
