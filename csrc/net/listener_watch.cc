#include "csrc/net/listener_watch.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr Duration kFirstLook = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);
// A firewall may refuse connections in the direction in which none is needed. Then the peer itself
// comes before long.
constexpr Duration kRefusedGrace = std::chrono::seconds(5);

}  // namespace

Status ListenerWatch::Start() {
  const TimePoint now = SteadyClock().Now();
  if (now < due()) return Status::Ok();
  if (socket_.valid()) {
    if (!IsConnected(fd())) return Again();
    unanswered_.Answered();
    return Status::Ok();
  }
  if (unanswered_.TooLong(now)) return Silent();
  unanswered_.Ask(now);
  auto started = StartConnect(address_);
  if (started.status().code() == StatusCode::kUnavailable) return Refused(started.status());
  if (!started.ok() || !started->valid()) return Again();
  socket_ = std::move(*started);
  return unanswered_.judges() ? LimitSilence(fd(), unanswered_.limit()) : Status::Ok();
}

Status ListenerWatch::Silent() const {
  return SilentHost(peer_, "connecting", unanswered_.limit());
}

Status ListenerWatch::Look() {
  std::byte nothing{};
  const ssize_t got = ::recv(fd(), &nothing, sizeof nothing, MSG_DONTWAIT);
  const int error = got < 0 ? errno : 0;
  if (got > 0 || error == EAGAIN || error == EINTR) return Status::Ok();
  if (error == ECONNREFUSED) {
    return Refused({StatusCode::kUnavailable, Format("cannot connect: {}", ErrnoText(error))});
  }
  if (IsSilence(error) && unanswered_.judges() && !unanswered_.asking()) return Silent();
  if (error == 0 || error == ECONNRESET) {  // it stood
    unanswered_.Answered();
    has_answered_ = true;
    refused_since_.reset();
    backoff_ = {};
  }
  return Again();
}

Status ListenerWatch::Again() {
  socket_.Reset();
  due_ = SteadyClock().Now() + backoff_;
  backoff_ = std::clamp(2 * backoff_, kFirstLook, kLongestPause);
  return Status::Ok();
}

Status ListenerWatch::Refused(const Status& why) {
  const TimePoint now = SteadyClock().Now();
  unanswered_.Answered();
  if (!refused_since_) refused_since_ = now;
  if (!has_answered_ && now - *refused_since_ < kRefusedGrace) return Again();
  return {StatusCode::kUnavailable,
          Format("rank {} has joined but does not listen any more at {}: {}", peer_, address_,
                 why.message()),
          peer_};
}

}  // namespace hvl::net
