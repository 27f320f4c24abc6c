#include "launcher/agent_frames.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"

namespace hvl::launcher {
namespace {

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): a zero byte

// Begins with a byte that no text has, so that no login script prints it.
constexpr std::string_view kMagic = "\0hvlrun-agent\0"sv;
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kShownNoise = 120;

// The structs of other headers that travel as they are.
template <typename Self>
  requires std::is_same_v<std::remove_const_t<Self>, Core>
auto FieldsOf(Self& self) {
  return std::tie(self.node, self.processors);
}
template <typename Self>
  requires std::is_same_v<std::remove_const_t<Self>, OtherProcess>
auto FieldsOf(Self& self) {
  return std::tie(self.pid, self.name, self.state);
}
template <typename Self>
  requires std::is_same_v<std::remove_const_t<Self>, Finding>
auto FieldsOf(Self& self) {
  return std::tie(self.level, self.topic, self.text, self.cure);
}
template <typename Self>
  requires std::is_same_v<std::remove_const_t<Self>, OperationReport>
auto FieldsOf(Self& self) {
  return std::tie(self.kind, self.name, self.process_set, self.operations, self.bytes,
                  self.sequence, self.plan, self.step, self.bucket, self.buckets, self.age_ns);
}
template <typename Self>
  requires std::is_same_v<std::remove_const_t<Self>, StatusReport>
auto FieldsOf(Self& self) {
  return std::tie(self.phase, self.peer, self.text, self.phase_age_ns, self.beat_age_ns,
                  self.named_peer, self.in_flight, self.is_running, self.at_gate, self.submitted,
                  self.started, self.completed);
}
template <typename Self>
  requires requires(Self& self) { Self::Fields(self); }
auto FieldsOf(Self& self) {
  return std::remove_const_t<Self>::Fields(self);
}

template <typename T>
concept WholeNumber = std::is_integral_v<T> && !std::is_same_v<T, bool>;

class FieldWriter {
 public:
  void Put(bool value) { out_.Integer(static_cast<std::uint8_t>(value ? 1 : 0)); }
  template <WholeNumber T>
  void Put(T value) {
    out_.Integer(static_cast<std::make_unsigned_t<T>>(value));
  }
  void Put(Finding::Level level) { out_.Integer(static_cast<std::uint8_t>(level)); }
  void Put(RankPhase phase) { out_.Integer(static_cast<std::uint8_t>(phase)); }
  void Put(const std::string& text) { out_.Text(text); }
  void Put(std::string_view text) { out_.Text(text); }
  void Put(const std::array<std::uint8_t, 32>& bytes) {
    for (const std::uint8_t byte : bytes) out_.Integer(byte);
  }
  template <typename T>
  void Put(const std::vector<T>& list) {
    out_.Integer(static_cast<std::uint32_t>(list.size()));
    for (const T& item : list) Put(item);
  }
  template <typename T>
    requires requires(const T& value) { FieldsOf(value); }
  void Put(const T& value) {
    std::apply([&](const auto&... fields) { (Put(fields), ...); }, FieldsOf(value));
  }

  std::string Take() { return out_.Take(); }

 private:
  net::ByteWriter out_;
};

/// Sets what is there; the rest stays. ok() tells whether all was there and every value can be.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}

  void Get(bool* value) {
    const auto byte = in_.Integer<std::uint8_t>();
    if (byte > 1) valid_ = false;
    *value = byte == 1;
  }
  template <WholeNumber T>
  void Get(T* value) {
    *value = static_cast<T>(in_.Integer<std::make_unsigned_t<T>>());
  }
  void Get(Finding::Level* level) {
    const auto byte = in_.Integer<std::uint8_t>();
    if (byte > static_cast<std::uint8_t>(Finding::Level::kFail)) valid_ = false;
    *level = static_cast<Finding::Level>(byte);
  }
  void Get(RankPhase* phase) {
    const auto byte = in_.Integer<std::uint8_t>();
    if (byte > static_cast<std::uint8_t>(RankPhase::kPeerLeft)) valid_ = false;
    *phase = static_cast<RankPhase>(byte);
  }
  void Get(std::string* text) { *text = in_.Text(); }
  void Get(std::string_view* text) { *text = in_.Text(); }
  void Get(std::array<std::uint8_t, 32>* bytes) {
    for (std::uint8_t& byte : *bytes) byte = in_.Integer<std::uint8_t>();
  }
  template <typename T>
  void Get(std::vector<T>* list) {
    const auto count = in_.Integer<std::uint32_t>();
    // An item has a byte at least, so a false count costs no more memory than the frame has.
    if (count > in_.remaining()) valid_ = false;
    for (std::uint32_t i = 0; ok() && i < count; ++i) Get(&list->emplace_back());
  }
  template <typename T>
    requires requires(T& value) { FieldsOf(value); }
  void Get(T* value) {
    std::apply([&](auto&... fields) { (Get(&fields), ...); }, FieldsOf(*value));
  }

  bool ok() const { return valid_ && in_.ok(); }
  std::size_t remaining() const { return in_.remaining(); }

 private:
  net::ByteReader in_;
  bool valid_ = true;
};

template <typename Frame>
void EncodeFrame(const Frame& frame, std::string* out) {
  FieldWriter fields;
  fields.Put(static_cast<std::uint8_t>(frame.index()));
  std::visit([&fields](const auto& alternative) { fields.Put(alternative); }, frame);
  const std::string body = fields.Take();
  net::ByteWriter length;
  length.Integer(static_cast<std::uint32_t>(body.size()));
  *out += length.str();
  *out += body;
}

/// The frame of kind `kIndex` or a later one; nothing when the bytes are none.
template <typename Frame, std::size_t kIndex = 0>
std::optional<Frame> DecodeFrame(std::size_t kind, std::string_view fields) {
  if constexpr (kIndex == std::variant_size_v<Frame>) {
    return std::nullopt;
  } else {
    if (kind != kIndex) return DecodeFrame<Frame, kIndex + 1>(kind, fields);
    FieldReader in(fields);
    std::variant_alternative_t<kIndex, Frame> value;
    in.Get(&value);
    if (!in.ok() || in.remaining() != 0) return std::nullopt;
    return Frame(std::in_place_index<kIndex>, std::move(value));
  }
}

Status NoFrame(std::string_view what) {
  return {StatusCode::kMismatch, Format("the stream is broken: {}", what)};
}

std::string Printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, kShownNoise)) text += c >= ' ' && c <= '~' ? c : '?';
  return text;
}

}  // namespace

std::string Greeting() {
  net::ByteWriter out;
  out.Raw(kMagic);
  out.Integer(kAgentProtocol);
  return out.Take();
}

void Encode(const HeadFrame& frame, std::string* out) { EncodeFrame(frame, out); }
void Encode(const AgentFrame& frame, std::string* out) { EncodeFrame(frame, out); }

void FrameReader::Feed(std::string_view bytes) {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  buffer_ += bytes;
}

Result<bool> FrameReader::Greeted() {
  if (greeted_) return true;
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  const std::size_t at = bytes.find(kMagic);
  if (at == std::string_view::npos) {
    if (bytes.size() <= kMaxGreetingNoise) return false;
    return Status(StatusCode::kMismatch,
                  Format("something else than hvlrun answers: '{}'", Printable(bytes)));
  }
  if (bytes.size() < at + kMagic.size() + sizeof kAgentProtocol) return false;
  noise_ = bytes.substr(0, at);
  const auto version = net::ByteReader(bytes.substr(at + kMagic.size())).Integer<std::uint16_t>();
  if (version != kAgentProtocol) {
    return Status(StatusCode::kMismatch,
                  Format("its hvlrun speaks version {} of the agents' protocol and this one {}; "
                         "install the same version of horovodlite on all hosts",
                         version, kAgentProtocol));
  }
  consumed_ += at + kMagic.size() + sizeof kAgentProtocol;
  greeted_ = true;
  return true;
}

template <typename Frame>
Result<std::optional<Frame>> FrameReader::Next() {
  const std::string_view bytes = std::string_view(buffer_).substr(consumed_);
  if (bytes.size() < kLengthBytes) return std::optional<Frame>();
  const std::size_t length = net::ByteReader(bytes).Integer<std::uint32_t>();
  if (length == 0 || length > kMaxFrameBytes) {
    return NoFrame(Format("a frame of {} bytes", length));
  }
  if (bytes.size() - kLengthBytes < length) return std::optional<Frame>();
  const std::string_view body = bytes.substr(kLengthBytes, length);
  const auto kind = static_cast<unsigned char>(body.front());
  std::optional<Frame> frame = DecodeFrame<Frame>(kind, body.substr(1));
  if (!frame) return NoFrame(Format("a frame of kind {} and {} bytes is none", kind, length));
  consumed_ += kLengthBytes + length;
  return frame;
}

Result<std::optional<HeadFrame>> FrameReader::NextOfHead() { return Next<HeadFrame>(); }
Result<std::optional<AgentFrame>> FrameReader::NextOfAgent() { return Next<AgentFrame>(); }

}  // namespace hvl::launcher
