// What strangers and broken peers can send to the net room: a hand-shake from either side, requests
// and answers of the store, cards, control frames, headers of data streams, addresses, records
// between hosts.
#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <string_view>

#include "csrc/base/check.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/net/address.h"
#include "csrc/net/bytes.h"
#include "csrc/net/frames.h"
#include "csrc/net/handshake.h"
#include "csrc/net/rank_card.h"
#include "csrc/net/round.h"
#include "csrc/net/route.h"
#include "csrc/net/sealed_stream.h"
#include "csrc/net/store_protocol.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

using Bytes = std::span<const std::byte>;

net::LinkIdentity Link() { return {"job", 5, net::Channel::kControl, 2, 1}; }

// Feeds `input` message by message until it ends or is refused. Without the secret nobody gets
// through, whatever he says.
void Feed(net::Handshake handshake, Bytes input) {
  while (input.size() >= handshake.wanted_bytes()) {
    const Bytes message = input.first(handshake.wanted_bytes());
    input = input.subspan(message.size());
    if (!handshake.Feed(message).ok()) break;
  }
  HVL_CHECK(!handshake.done(), "noise was taken for a proof");
}

void DecodeJoin(Bytes input) {
  if (input.size() < net::kJoinHeaderBytes) return;
  const auto join = net::DecodeJoinHeader(input.first<net::kJoinHeaderBytes>());
  if (!join.ok()) return;
  HVL_CHECK(net::CheckJoin(join->rank, join->size, join->blob_bytes).ok());
}

void DecodeAnswer(Bytes input) {
  if (input.size() < net::kAnswerHeaderBytes) return;
  const auto header = net::DecodeAnswerHeader(input.first<net::kAnswerHeaderBytes>());
  if (!header.ok()) return;
  const Bytes body = input.subspan(net::kAnswerHeaderBytes);
  const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  const auto answer = net::DecodeAnswer(*header, text);
  if (answer.ok()) HVL_CHECK(answer->blobs.size() == header->rank_count);
}

void DecodeCard(Bytes input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto card = net::DecodeCard(text, 0);
  if (card.ok()) HVL_CHECK(net::EncodeCard(*card) == text, "a card with two encodings");
}

void FindFrames(Bytes input) {
  constexpr std::size_t kLimit = 1 << 10;
  for (;;) {
    const net::NextFrame next = net::FindFrame(input, kLimit);
    if (next.is != net::NextFrame::Is::kFrame) return;
    HVL_CHECK(next.bytes <= input.size() && next.payload.size() <= kLimit);
    input = input.subspan(next.bytes);
  }
}

void DecodeTransferHeader(Bytes input) {
  constexpr std::size_t kBytes = collective::TransferHeader::kBytes;
  if (input.size() < kBytes) return;
  const auto header = collective::TransferHeader::Decode(input.first<kBytes>());
  HVL_CHECK(std::ranges::equal(header.Encode(), input.first(kBytes)));
  HVL_CHECK(!header.ToString().empty());
}

void ParseAddress(Bytes input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto place = net::ParseTcp(text);
  if (place.ok()) HVL_CHECK(net::ParseTcp(net::TcpText(*place)).value() == *place);
}

void DecodeLossNotice(Bytes input) {
  constexpr int kSize = 1000;
  const auto loss = net::DecodeLoss(input, kSize);
  if (!loss.ok()) return;
  HVL_CHECK(!loss->ranks.empty() && loss->ranks.front() >= 0 && loss->ranks.back() < kSize);
  HVL_CHECK(std::ranges::equal(net::AsBytes(net::EncodeLoss(*loss)), input), "two encodings");
}

// Without the key nothing comes out.
void OpenRecords(Bytes input) {
  net::Opener opener(net::Secret::Random());
  net::ByteQueue records, out;
  records.Append(input);
  const auto opened = opener.Open(records, out);
  HVL_CHECK((!opened.ok() || *opened == 0) && out.empty(), "noise was taken for a record");
}

std::string SealedRecord(std::string_view payload) {
  net::Sealer sealer{net::Secret()};
  net::ByteQueue out;
  const std::span<const std::byte> part = net::AsBytes(payload);
  sealer.Seal({&part, 1}, out);
  return {reinterpret_cast<const char*>(out.front().data()), out.size()};
}

Input ToInput(std::string_view text) {
  const Bytes bytes = net::AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void RunHandshake(std::span<const std::byte> input) {
  const net::Secret secret = net::Secret::Random();
  Feed(net::Handshake::Accept(Link(), secret), input);
  Feed(net::Handshake::Connect(Link(), secret), input);
}

std::vector<Input> HandshakeCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto random_bytes = [&random](std::size_t count) {
    Input bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  };
  std::vector<Input> corpus;
  const net::Handshake client = net::Handshake::Connect(Link(), net::Secret());
  for (int i = 0; i < 10; ++i) {
    // A good hello with another nonce, and a bad proof; then a bad challenge and accept.
    Input to_server(client.opening().begin(), client.opening().end() - 32);
    const Input rest = random_bytes(32 + net::kProofBytes);
    to_server.insert(to_server.end(), rest.begin(), rest.end());
    corpus.push_back(to_server);
    corpus.push_back(random_bytes(net::kChallengeBytes + net::kAcceptBytes));
  }
  return corpus;
}

void RunNet(std::span<const std::byte> input) {
  DecodeJoin(input);
  DecodeAnswer(input);
  DecodeCard(input);
  FindFrames(input);
  DecodeTransferHeader(input);
  ParseAddress(input);
  DecodeLossNotice(input);
  OpenRecords(input);
}

std::vector<Input> NetCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> corpus;
  for (int i = 0; i < 20; ++i) {
    const std::string blob(random() % 100, static_cast<char>(random()));
    const int size = static_cast<int>(random() % 64) + 1;
    corpus.push_back(
        ToInput(net::EncodeJoin({.size = size, .timeout = std::chrono::seconds(1)}, blob)));
    corpus.push_back(ToInput(net::EncodeAnswer(net::Rendezvous{random(), {blob, "", blob}})));
    corpus.push_back(ToInput(net::EncodeAnswer(net::JoinTimeout(1, size, "0, 2-3"))));
    corpus.push_back(ToInput(net::EncodeCard(
        {"unix:@x", "tcp:10.0.0.1:7", "tcp:[::1]:9", 17, "scope", "boot/net", "node", blob})));
    corpus.push_back(ToInput("tcp:node-1.example:65535"));
    corpus.push_back(ToInput("tcp:[2001:db8::1%eth0]:80"));
    const Status cause(StatusCode::kUnavailable, blob, size);
    corpus.push_back(ToInput(net::EncodeLoss({{size - 1, size, size + 5}, cause})));
    corpus.push_back(ToInput(SealedRecord(blob)));
    net::ByteWriter frames;
    for (const std::uint32_t kind : {0U, 0U, 1U}) {
      frames.Integer(kind == 0 ? static_cast<std::uint32_t>(blob.size()) : 0U);
      frames.Integer(kind);
      if (kind == 0) frames.Raw(blob);
    }
    corpus.push_back(ToInput(frames.str()));
  }
  return corpus;
}

}  // namespace hvl::fuzz
