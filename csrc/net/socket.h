// Listening and connecting on this host: abstract Unix sockets and TCP over loopback. Every socket
// made here is non-blocking and close-on-exec.
#pragma once

#include <sys/types.h>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::net {

enum class Transport : std::uint8_t { kUnix, kTcp };

struct Listener {
  UniqueFd socket;
  std::string address;  ///< "unix:@<random name>" or "tcp:127.0.0.1:<port>"
};

/// kTcp binds to the loopback address only.
Result<Listener> Listen(Transport transport);
/// "unix:@<name>", which the first to come gets; an invalid socket: it is taken.
Result<Listener> ListenAt(std::string_view name);
/// The next waiting connection; an invalid descriptor when none waits (any more). Refuses
/// processes of other users on Unix sockets.
Result<UniqueFd> Accept(int listener, Transport transport);
/// Starts to connect; when the socket is writable, it is connected or has failed. An invalid
/// descriptor: the listener's queue is full, try again a little later. Unavailable: nobody
/// listens.
Result<UniqueFd> StartConnect(const std::string& address);
/// InvalidArgument unless `address` has one of the two forms.
Result<Transport> TransportOf(const std::string& address);

/// The process at the other end of a Unix socket; 0 when it is not visible from here.
pid_t PeerPid(int socket);
/// Mismatch unless the process at the other end of a Unix socket belongs to this user.
Status CheckPeerUser(int socket);

/// `what: <errno text>`. ResourceExhausted with the cure when descriptors or memory ran out, else
/// Unavailable.
Status ErrnoStatus(std::string_view what);

/// Milliseconds for poll(): at least until `deadline`, at most ten minutes, 0 when it has passed.
int PollMillis(TimePoint deadline);

}  // namespace hvl::net
