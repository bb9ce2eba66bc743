#ifndef REDLEASE_SRC_HPP
#define REDLEASE_SRC_HPP

/// The whole implementation. For header-only use (redlease::header_only) include this in exactly
/// one source file of the program; with the compiled library, never.

#include <redlease/error.ipp>
#include <redlease/fencing.ipp>
#include <redlease/options.ipp>
#include <redlease/token.ipp>
#include <redlease/version.ipp>

#include <redlease/core/key_slot.ipp>
#include <redlease/core/lease_state.ipp>
#include <redlease/core/renewal_plan.ipp>
#include <redlease/core/wait_plan.ipp>

#include <redlease/wire/batch.ipp>
#include <redlease/wire/connection.ipp>
#include <redlease/wire/connector.ipp>
#include <redlease/wire/debts.ipp>
#include <redlease/wire/opening.ipp>
#include <redlease/wire/pipeline.ipp>
#include <redlease/wire/pipelines.ipp>
#include <redlease/wire/resolver.ipp>
#include <redlease/wire/server_error.ipp>
#include <redlease/wire/socket.ipp>
#include <redlease/wire/url.ipp>

#include <redlease/store/lease_store.ipp>
#include <redlease/store/line_store.ipp>
#include <redlease/store/renewal_stream.ipp>
#include <redlease/store/watch_stream.ipp>

#include <redlease/runtime/acquirer.ipp>
#include <redlease/runtime/acquirer_line.ipp>
#include <redlease/runtime/backend.ipp>
#include <redlease/runtime/keeper.ipp>
#include <redlease/runtime/lease_core.ipp>
#include <redlease/runtime/lease_keeping.ipp>
#include <redlease/runtime/notifier.ipp>
#include <redlease/runtime/timer.ipp>
#include <redlease/runtime/waiting_handoffs.ipp>
#include <redlease/runtime/waiting_places.ipp>
#include <redlease/runtime/waiting_room.ipp>
#include <redlease/runtime/wakeups.ipp>

#include <redlease/client.ipp>
#include <redlease/lease.ipp>

#endif
