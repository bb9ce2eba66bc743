// Users of the compiled library see none of its dependencies, not even through another header.
#include <redlease/redlease.hpp>

#ifdef HIREDIS_MAJOR
#error "<redlease/redlease.hpp> lets hiredis through"
#endif
#ifdef FMT_VERSION
#error "<redlease/redlease.hpp> lets fmt through"
#endif
#ifdef BOOST_CONFIG_HPP
#error "<redlease/redlease.hpp> lets Boost through"
#endif
