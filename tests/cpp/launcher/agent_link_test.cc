// The head's end of the line to an agent, against one that this test plays.
#include "launcher/agent_link.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;
using State = AgentLink::State;

class Heard final : public RankListener {
 public:
  void RankWrote(int rank, bool is_stderr, std::string_view bytes) override {
    output += Format("{}{}:{}", rank, is_stderr ? "e" : "o", bytes);
  }
  void StreamEnded(int rank, bool is_stderr) override {
    output += Format("{}{}.", rank, is_stderr ? "e" : "o");
  }
  void RankEnded(const RankExit& exit) override { exits.push_back(exit); }
  void LeftoverEnded() override { ++leftovers_gone; }
  void LeftoverSignalled(const OtherProcess& process) override { leftovers.push_back(process); }

  std::string output;
  std::vector<RankExit> exits;
  int leftovers_gone = 0;
  std::vector<OtherProcess> leftovers;
};

StartOrder OrderOf(const std::vector<int>& ranks) {
  StartOrder order;
  order.command = {"x"};
  for (const int rank : ranks) order.ranks.emplace_back().rank = rank;
  return order;
}

/// A link whose agent is this test.
class Line {
 public:
  Line() {
    Result<Poller> poller = Poller::Create();
    REQUIRE(poller.ok());
    poller_ = std::make_unique<Poller>(std::move(*poller));
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    agent_ = net::UniqueFd(ends[1]);
    link_ = std::make_unique<AgentLink>(0, "node2", poller_.get(), &heard,
                                        [this](int signo) { signals.push_back(signo); });
    REQUIRE(link_->Take(net::UniqueFd(ends[0]), std::nullopt).ok());
  }

  void Say(const AgentFrame& frame) {
    std::string bytes;
    Encode(frame, &bytes);
    SayBytes(bytes);
  }
  void SayBytes(std::string_view bytes) {
    REQUIRE(::write(agent_.get(), bytes.data(), bytes.size()) ==
            static_cast<ssize_t>(bytes.size()));
    link_->OnReady({Token::Kind::kAgentIn, 0});
  }
  void SayHello() {
    SayBytes(Greeting());
    Say(Hello());
    REQUIRE(link_->state() == State::kReady);
  }
  /// Orders ranks 4 and 5, which are started.
  void Start() {
    SayHello();
    link_->Order(OrderOf({4, 5}));
    Say(Started{{40, 50}, 0, ""});
    REQUIRE(link_->state() == State::kRunning);
    NextOrders();
  }
  void End(int rank) {
    RankExit exit;
    exit.rank = rank;
    Say(Ended{exit});
  }
  void HangUp() {
    agent_.Reset();
    link_->OnReady({Token::Kind::kAgentIn, 0});
  }
  /// What the link has sent since the last call.
  std::vector<HeadFrame> NextOrders() {
    std::array<char, 65536> bytes{};
    const ssize_t count = ::read(agent_.get(), bytes.data(), bytes.size());
    if (count > 0) reader_.Feed({bytes.data(), static_cast<std::size_t>(count)});
    REQUIRE(reader_.Greeted().ok());
    std::vector<HeadFrame> frames;
    for (;;) {
      auto frame = reader_.NextOfHead();
      REQUIRE(frame.ok());
      if (!*frame) return frames;
      frames.push_back(**frame);
    }
  }
  AgentLink& link() { return *link_; }

  Heard heard;
  std::vector<int> signals;

 private:
  std::unique_ptr<Poller> poller_;
  net::UniqueFd agent_;
  std::unique_ptr<AgentLink> link_;
  FrameReader reader_;
};

TEST_CASE("a host's ranks are ordered, heard and seen to end") {
  Line line;
  line.Start();
  line.Say(Wrote{4, false, "hello\n"});
  line.Say(Wrote{4, false, ""});
  CHECK(line.heard.output == "4o:hello\n4o.");
  line.End(4);
  CHECK_FALSE(line.link().nobody_left());
  line.End(5);
  line.Say(NobodyLeft());
  CHECK(line.link().nobody_left());
  CHECK_FALSE(line.link().drained());
  line.Say(Wrote{5, true, "late"});
  line.Say(Finished{{{9, "stuck", 'D'}}});
  CHECK(line.link().drained());
  CHECK(line.link().gone());
  CHECK(line.heard.output == "4o:hello\n4o.5e:late");
  CHECK(line.link().Unkillable() == std::vector<OtherProcess>{{9, "stuck", 'D'}});
  CHECK(line.heard.exits.size() == 2);
}

TEST_CASE("what the head wants goes out, in order, while the ranks live") {
  Line line;
  line.link().SetReading(false, false);  // before there is anybody to tell
  line.SayHello();
  line.link().SignalRanks(SIGTERM);
  const StartOrder order = OrderOf({0});
  line.link().Order(order);
  line.link().SignalRanks(SIGTERM);
  line.link().SignalLeftovers(SIGINT);
  line.link().KillAll();
  CHECK(line.NextOrders() == std::vector<HeadFrame>{order, ReadingOrder{false, false},
                                                    SignalOrder{SIGTERM, false},
                                                    SignalOrder{SIGINT, true}, KillOrder()});
}

TEST_CASE("when the line breaks, its ranks are lost with the reason") {
  Line line;
  line.Start();
  line.End(4);
  line.HangUp();
  CHECK(line.link().state() == State::kLost);
  REQUIRE(line.heard.exits.size() == 2);
  CHECK(line.heard.exits[1].rank == 5);
  CHECK(line.heard.exits[1].pid == 50);
  CHECK(line.heard.exits[1].status.lost);
  CHECK(line.heard.exits[1].lost_because == "the connection to it was closed");
  CHECK(line.heard.output == "5o.5e.");
  CHECK(line.link().nobody_left());
  line.link().KillAll();  // nobody to tell
}

TEST_CASE("an agent that is silent for too long is lost, and one that beats is not") {
  Line line;
  line.Start();
  line.link().OnTime(SteadyClock().Now() + kSilenceLimit - 1s);
  CHECK(line.link().state() == State::kRunning);
  line.Say(Beat());
  CHECK(*line.link().deadline() > SteadyClock().Now() + kSilenceLimit - 1s);
  line.link().OnTime(*line.link().deadline());
  CHECK(line.link().state() == State::kLost);
  CHECK(line.link().trouble() == "nothing was heard of it for 2.5 s");
  CHECK(line.heard.exits.size() == 2);
}

TEST_CASE("an agent that never answers is given up") {
  Line line;
  line.link().OnTime(SteadyClock().Now() + kAnswerLimit - 1s);
  CHECK(line.link().state() == State::kCalling);
  line.link().OnTime(SteadyClock().Now() + kAnswerLimit);
  CHECK(line.link().trouble() == "no answer within 30 s");
}

TEST_CASE("an agent that breaks the rules is cut off, and speaks for no other host's ranks") {
  RankExit foreign;
  foreign.rank = 3;
  const std::map<std::string, AgentFrame> bad = {
      {"hello twice", Hello()},          {"output of rank 3", Wrote{3, false, "x"}},
      {"end of rank 3", Ended{foreign}}, {"started again", Started{{1, 2}, 0, ""}},
      {"all gone", NobodyLeft()},        {"finished", Finished()},
      {"examined", Examined()}};
  for (const auto& [what, frame] : bad) {
    INFO(what);
    Line line;
    line.Start();
    line.Say(frame);
    CHECK(line.link().state() == State::kLost);
    CHECK_THAT(line.link().trouble(), Catch::Contains("breaks the rules"));
    CHECK(line.heard.output == "4o.4e.5o.5e.");
  }
  Line line;
  line.SayBytes(Greeting());
  line.Say(Beat());
  CHECK_THAT(line.link().trouble(), Catch::Contains("does not begin with hello"));
  Line noise;
  noise.Start();
  noise.SayBytes("\xff\xff\xff\xff");
  CHECK_THAT(noise.link().trouble(), Catch::Contains("the stream is broken"));
}

TEST_CASE("an agent that could not start its ranks says why") {
  Line line;
  line.SayHello();
  line.link().Order(OrderOf({0, 1}));
  line.End(0);  // the one that had been started already
  line.Say(Started{{}, 127, "command not found: 'x'"});
  CHECK(line.link().state() == State::kRefused);
  CHECK(line.link().started().exit_code == 127);
  line.Say(NobodyLeft());
  line.Say(Finished());
  CHECK(line.link().state() == State::kFinished);
  CHECK(line.heard.exits.size() == 1);
}

TEST_CASE("a signal that an agent was sent is passed to the head") {
  Line line;
  line.Start();
  line.Say(Signalled{SIGTERM});
  CHECK(line.signals == std::vector<int>{SIGTERM});
}

TEST_CASE("one that is not needed is let go without an order") {
  Line line;
  line.SayHello();
  line.link().KillAll();
  CHECK(line.link().gone());
  CHECK(line.heard.exits.empty());
}

}  // namespace
}  // namespace hvl::launcher
