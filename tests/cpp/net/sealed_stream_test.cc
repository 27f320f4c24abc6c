#include "csrc/net/sealed_stream.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "csrc/net/bytes.h"
#include "csrc/net/handshake.h"

namespace hvl::net {
namespace {

std::string TextOf(const ByteQueue& queue) {
  const auto bytes = queue.front();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Sealed(Sealer& sealer, const std::vector<std::string>& parts) {
  std::vector<std::span<const std::byte>> spans;
  for (const std::string& part : parts) spans.push_back(AsBytes(part));
  ByteQueue out;
  sealer.Seal(spans, out);
  return TextOf(out);
}

Result<std::size_t> OpenText(Opener& opener, const std::string& records, std::string& text) {
  ByteQueue in, out;
  in.Append(AsBytes(records));
  Result<std::size_t> opened = opener.Open(in, out);
  text = TextOf(out);
  return opened;
}

}  // namespace

TEST_CASE("what is sealed opens again, however the bytes come", "[sealed]") {
  const Secret key = Secret::Random();
  Sealer sealer(key);
  Opener opener(key);
  std::mt19937 random(Catch::rngSeed());
  CAPTURE(Catch::rngSeed());
  std::string sent, records;
  for (int i = 0; i < 50; ++i) {
    const std::string head(random() % 9, static_cast<char>(random()));
    const std::string body(i % 10 == 0 ? random() % 200'000 : random() % 500,
                           static_cast<char>(random()));
    sent += head + body;
    records += Sealed(sealer, {head, body});
  }
  ByteQueue in, out;
  for (std::size_t at = 0; at < records.size();) {
    const std::size_t chunk = std::min<std::size_t>(random() % 5000 + 1, records.size() - at);
    in.Append(AsBytes(std::string_view(records).substr(at, chunk)));
    REQUIRE(opener.Open(in, out).ok());
    at += chunk;
  }
  CHECK((TextOf(out) == sent));
  CHECK(in.empty());
}

TEST_CASE("a beat is an empty record of twenty bytes", "[sealed]") {
  const Secret key = Secret::Random();
  Sealer sealer(key);
  Opener opener(key);
  std::string beats = Sealed(sealer, {});
  beats += Sealed(sealer, {});
  CHECK(beats.size() == 2 * (kRecordHeaderBytes + kRecordTagBytes));
  CHECK(beats.substr(0, 20) != beats.substr(20));
  std::string text;
  CHECK(*OpenText(opener, beats, text) == 2);
  CHECK(text.empty());
}

TEST_CASE("every bit of a record counts", "[sealed]") {
  const Secret key = Secret::Random();
  Sealer sealer(key);
  const std::string record = Sealed(sealer, {"thirteen", "bytes"});
  for (std::size_t bit = 0; bit < 8 * record.size(); ++bit) {
    std::string changed = record;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    Opener opener(key);
    std::string text;
    const auto opened = OpenText(opener, changed, text);
    // A longer size waits for more bytes; nothing may come out of it.
    CHECK((!opened.ok() || *opened == 0));
    CHECK(text.empty());
  }
}

TEST_CASE("records that are missing, repeated, swapped or of another stream are refused",
          "[sealed]") {
  const Secret key = Secret::Random();
  Sealer sealer(key), other(Secret::Random());
  const std::string one = Sealed(sealer, {"one"}), two = Sealed(sealer, {"two"});
  const std::string foreign = Sealed(other, {"one"});
  std::string text;
  for (const std::string& stream : {two, one + one, foreign}) {
    Opener opener(key);
    CHECK(OpenText(opener, stream, text).status().code() == StatusCode::kInternal);
    CHECK(text == (stream == one + one ? "one" : ""));
  }
  Opener opener(key);
  CHECK(*OpenText(opener, one + two, text) == 2);
  CHECK(text == "onetwo");
  CHECK_FALSE(OpenText(opener, one, text).ok());
}

TEST_CASE("a size beyond the limit is refused before its bytes come", "[sealed]") {
  Opener opener(Secret{});
  std::string text;
  ByteWriter size;
  size.Integer(static_cast<std::uint32_t>(kMaxRecordBytes + 1));
  CHECK(OpenText(opener, size.str(), text).status().code() == StatusCode::kInternal);
}

TEST_CASE("each connection and direction has keys of its own, the same at both ends", "[sealed]") {
  const Secret secret = Secret::Random();
  const LinkIdentity link{"job", 1, Channel::kControl, 4, 0};
  std::vector<Secret> keys;
  for (int connection = 0; connection < 2; ++connection) {
    Handshake client = Handshake::Connect(link, secret);
    Handshake server = Handshake::Accept(link, secret);
    const auto challenge = server.Feed(client.opening());
    const auto proof = client.Feed(*challenge);
    const auto accept = server.Feed(*proof);
    REQUIRE(client.Feed(*accept).ok());
    CHECK(client.Keys().send.key == server.Keys().receive.key);
    CHECK(client.Keys().receive.key == server.Keys().send.key);
    keys.push_back(client.Keys().send);
    keys.push_back(client.Keys().receive);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CHECK(keys[i].key != secret.key);
    for (std::size_t j = 0; j < i; ++j) CHECK(keys[i].key != keys[j].key);
  }
}

}  // namespace hvl::net
