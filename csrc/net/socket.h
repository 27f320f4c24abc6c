// Listening and connecting: abstract Unix sockets and TCP. Every socket made here is non-blocking
// and close-on-exec.
#pragma once

#include <sys/types.h>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/net/address.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct Listener {
  UniqueFd socket;
  std::string address;  ///< "unix:@<name>" or "tcp:<numeric host>:<port>"
};

/// At a random name, or at a free port of the loopback address.
Result<Listener> Listen(Transport transport);
/// "unix:@<name>", which the first to come gets; an invalid socket: it is taken.
Result<Listener> ListenAt(std::string_view name);
/// At an address of this host and nowhere else; port 0 in it: any free one. An invalid socket: the
/// port is taken.
Result<Listener> ListenAt(const SocketAddress& address);
/// At any free port of a numeric address of this host.
Result<Listener> ListenOn(const std::string& host);
/// The next waiting connection; an invalid descriptor when none waits (any more). Refuses
/// processes of other users on Unix sockets.
Result<UniqueFd> Accept(int listener, Transport transport);
/// Starts to connect to a numeric address; when the socket is writable, FinishConnect tells how it
/// went. An invalid descriptor: the listener's queue is full, try again a little later.
/// Unavailable: nobody listens.
Result<UniqueFd> StartConnect(const SocketAddress& address);
Result<UniqueFd> StartConnect(std::string_view numeric_address);
/// Of a socket that has become writable. Unavailable: nobody listens. Timeout: no answer, or no way
/// to the host.
Status FinishConnect(int socket);
/// Of TCP: a host that answers nothing is given up after `limit` (or 2 s, if that is more), whether
/// bytes wait for it or not. Hosts answer for processes that are busy or stopped; but one that
/// takes no more bytes is given up as well.
Status LimitSilence(int socket, Duration limit);
/// The error that a socket has failed with, which this clears; 0: none.
int TakeError(int socket);
/// Whether a socket fails so when nothing comes from the other host, or no way leads there.
bool IsSilence(int error);
/// Whether the other end has answered the connection that was started.
bool IsConnected(int socket);

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
