// SPDX-License-Identifier: Apache-2.0
// Two Sessions and a transport between them that may break after any byte.
#include "proto/wire/session.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace ivy::session {
namespace {

constexpr std::uint64_t kWindow = 4096;

// One side: its session, the frames that it received, and its part of the handshake.
struct End {
  enum class Role { kLauncher, kSupervisor };
  End(Role which, std::uint64_t window) : role(which), session(window) {}

  void link_up() {
    session.link_up();
    if (role == Role::kSupervisor) return;
    session.send_handshake(FrameType::kAttach, "proof");
    if (transports++ > 0) return;
    ASSERT_TRUE(session.attached(0).ok());
  }

  // Takes bytes from the transport. Returns false if the session wants the transport dropped.
  bool receive(std::string_view bytes) {
    while (true) {
      Result<std::vector<Frame>> frames = session.receive(bytes);
      if (!frames.ok()) return false;
      bytes = {};
      bool again = false;
      for (Frame& frame : frames.value()) again = accept(std::move(frame)) || again;
      if (!again) return true;
    }
  }

  // Returns true if the frame was a handshake: more frames may wait after it.
  bool accept(Frame frame) {
    const FrameHeader& header = frame.header;
    if (header.type == FrameType::kAttach || header.type == FrameType::kAttached) {
      EXPECT_TRUE(session.attached(header.acknowledged).ok());
      if (role == Role::kSupervisor) session.send_handshake(FrameType::kAttached, "");
      return true;
    }
    if (is_flow(header.type)) flow_bytes += frame.payload.size();
    (is_flow(header.type) ? flow : control).push_back(std::move(frame.payload));
    return false;
  }

  FrameType control_type() const {
    return role == Role::kLauncher ? FrameType::kCommand : FrameType::kEvent;
  }
  FrameType flow_type() const {
    return role == Role::kLauncher ? FrameType::kInput : FrameType::kOutput;
  }

  Role role;
  Session session;
  int transports = 0;
  std::vector<std::string> control;
  std::vector<std::string> flow;
  std::uint64_t flow_bytes = 0;
};

struct Pair {
  explicit Pair(std::uint64_t window = kWindow)
      : launcher(End::Role::kLauncher, window), supervisor(End::Role::kSupervisor, window) {}

  void connect() {
    launcher.link_up();
    supervisor.link_up();
  }
  void disconnect() {
    launcher.session.link_down();
    supervisor.session.link_down();
  }
  // Moves bytes in both directions until neither side has any to send.
  void settle() {
    for (int round = 0; round < 1000; ++round) {
      const std::string down = launcher.session.take_bytes(1, 1u << 20);
      ASSERT_TRUE(supervisor.receive(down));
      const std::string up = supervisor.session.take_bytes(1, 1u << 20);
      ASSERT_TRUE(launcher.receive(up));
      if (down.empty() && up.empty()) return;
    }
    FAIL() << "the sessions never stopped sending";
  }
  void heartbeat() {
    launcher.session.send_heartbeat();
    supervisor.session.send_heartbeat();
    settle();
  }

  End launcher;
  End supervisor;
};

std::vector<Frame> frames_in(const std::string& bytes) {
  FrameDecoder decoder;
  EXPECT_TRUE(decoder.feed(std::string(kPreamble) + bytes).ok());
  std::vector<Frame> frames;
  while (std::optional<Frame> frame = decoder.next()) frames.push_back(std::move(*frame));
  return frames;
}

TEST(LinkTest, FirstBytesAreThePreambleAndAttach) {
  Pair pair;
  pair.connect();
  ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, "hello").ok());
  const std::string bytes = pair.launcher.session.take_bytes(1, 1u << 20);
  ASSERT_TRUE(bytes.starts_with(kPreamble));
  const std::vector<Frame> frames = frames_in(bytes.substr(kPreamble.size()));
  ASSERT_GE(frames.size(), 2u);
  EXPECT_EQ(frames[0].header.type, FrameType::kAttach);
  // The first command does not wait for the answer, which saves a round trip.
  EXPECT_EQ(frames[1].payload, "hello");
}

TEST(LinkTest, ASupervisorSendsNothingBeforeAttach) {
  Pair pair;
  pair.connect();
  ASSERT_TRUE(pair.supervisor.session.send(FrameType::kEvent, "secret").ok());
  const std::string first = pair.supervisor.session.take_bytes(1, 1u << 20);
  EXPECT_EQ(first, kPreamble);
  EXPECT_FALSE(pair.supervisor.session.has_bytes());
  ASSERT_TRUE(pair.launcher.receive(first));
  pair.settle();
  EXPECT_EQ(pair.launcher.control, std::vector<std::string>{"secret"});
}

TEST(LinkTest, DropsTheTransportOnAFrameBeforeAttach) {
  for (const FrameType type : {FrameType::kCommand, FrameType::kHeartbeat, FrameType::kAck}) {
    Session supervisor(kWindow);
    supervisor.link_up();
    FrameHeader header;
    header.type = type;
    header.sequence = type == FrameType::kCommand ? 1 : 0;
    const Result<std::vector<Frame>> taken =
        supervisor.receive(std::string(kPreamble) + encode_header(header));
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.error().code, Code::kDataLoss);
  }
}

TEST(LinkTest, IgnoresCreditFromAnUnattachedTransport) {
  Session supervisor(kWindow);
  supervisor.link_up();
  FrameHeader header;
  header.type = FrameType::kAttach;
  header.credit = 1u << 30;
  ASSERT_TRUE(supervisor.receive(std::string(kPreamble) + encode_header(header)).ok());
  EXPECT_EQ(supervisor.flow_room(), 0u);
  // The transport was rejected. The next one belongs to the launcher and has its own credit.
  supervisor.link_down();
  supervisor.link_up();
  header.credit = 100;
  ASSERT_TRUE(supervisor.receive(std::string(kPreamble) + encode_header(header)).ok());
  ASSERT_TRUE(supervisor.attached(0).ok());
  EXPECT_EQ(supervisor.flow_room(), 100u);
}

TEST(LinkTest, RejectsSequencesThatDoNotFitTheType) {
  const struct {
    FrameType type;
    std::uint64_t sequence;
  } cases[] = {{FrameType::kCommand, 0}, {FrameType::kOutput, 0}, {FrameType::kHeartbeat, 1},
               {FrameType::kAck, 1},     {FrameType::kAttach, 1}, {FrameType::kCommand, 2}};
  for (const auto& [type, sequence] : cases) {
    Session session(kWindow);
    session.link_up();
    ASSERT_TRUE(session.attached(0).ok());
    FrameHeader header;
    header.type = type;
    header.sequence = sequence;
    EXPECT_FALSE(session.receive(std::string(kPreamble) + encode_header(header)).ok())
        << static_cast<int>(type) << " " << sequence;
  }
}

TEST(LinkTest, DropsTheTransportOnAcknowledgementsOfUnsentFrames) {
  Session session(kWindow);
  session.link_up();
  EXPECT_FALSE(session.attached(1).ok());
  ASSERT_TRUE(session.attached(0).ok());
  FrameHeader header;
  header.type = FrameType::kHeartbeat;
  header.acknowledged = ~std::uint64_t{0};
  EXPECT_FALSE(session.receive(std::string(kPreamble) + encode_header(header)).ok());
}

TEST(LinkTest, RejectsAPeerThatLostItsState) {
  Pair pair;
  pair.connect();
  ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, "one").ok());
  pair.settle();
  pair.heartbeat();
  EXPECT_TRUE(pair.launcher.session.all_acknowledged());
  pair.disconnect();
  pair.launcher.session.link_up();
  const Result<void> attached = pair.launcher.session.attached(0);
  ASSERT_FALSE(attached.ok());
  EXPECT_EQ(attached.error().code, Code::kDataLoss);
}

TEST(LinkTest, ResendsAFailedBatch) {
  // One read has valid frames and then garbage. The owner sees none of the frames, so none may be
  // acknowledged.
  Pair pair;
  pair.connect();
  pair.settle();
  ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, "one").ok());
  ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, "two").ok());
  const std::string bytes = pair.launcher.session.take_bytes(1, 1u << 20);
  EXPECT_FALSE(pair.supervisor.receive(bytes + std::string(kHeaderBytes, 'j')));
  EXPECT_TRUE(pair.supervisor.control.empty());
  pair.disconnect();
  pair.connect();
  pair.settle();
  EXPECT_EQ(pair.supervisor.control, (std::vector<std::string>{"one", "two"}));
}

TEST(LinkTest, FlowWaitsForCreditAndControlOvertakesIt) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& sender = pair.supervisor.session;
  EXPECT_EQ(sender.flow_room(), kWindow);
  const std::string block(1024, 'o');
  for (int i = 0; i < 6; ++i) sender.send_flow(FrameType::kOutput, block);
  EXPECT_EQ(sender.flow_room(), 0u);
  pair.settle();
  EXPECT_EQ(pair.launcher.flow_bytes, kWindow);
  ASSERT_TRUE(sender.send(FrameType::kEvent, "exited").ok());
  pair.settle();
  EXPECT_EQ(pair.launcher.control, std::vector<std::string>{"exited"});
  EXPECT_EQ(pair.launcher.flow.size(), 4u);
  pair.launcher.session.grant(1024);
  pair.settle();
  EXPECT_EQ(pair.launcher.flow.size(), 5u);
  // One byte less than a block is not enough for the last block.
  pair.launcher.session.grant(1023);
  pair.heartbeat();
  EXPECT_EQ(pair.launcher.flow.size(), 5u);
  pair.launcher.session.grant(1);
  pair.heartbeat();
  EXPECT_EQ(pair.launcher.flow.size(), 6u);
  pair.heartbeat();
  EXPECT_TRUE(sender.all_acknowledged());
}

TEST(LinkTest, LimitsOutputToTheReceiversCredit) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& sender = pair.supervisor.session;
  sender.send_flow(FrameType::kOutput, std::string(1000, 'o'));
  EXPECT_EQ(sender.flow_room(), kWindow - 1000);
  pair.settle();
  EXPECT_EQ(sender.flow_room(), kWindow - 1000);
  pair.launcher.session.grant(1000);
  pair.heartbeat();
  EXPECT_EQ(sender.flow_room(), kWindow);
}

TEST(LinkTest, QueuedControlLeavesBeforeQueuedFlow) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& sender = pair.supervisor.session;
  sender.send_flow(FrameType::kOutput, "output");
  ASSERT_TRUE(sender.send(FrameType::kEvent, "event").ok());
  const std::vector<Frame> frames = frames_in(sender.take_bytes(1, 1u << 20));
  ASSERT_GE(frames.size(), 2u);
  EXPECT_EQ(frames[0].payload, "event");
  EXPECT_EQ(frames[1].payload, "output");
}

TEST(LinkTest, AnEmptyFlowFrameNeedsNoCredit) {
  Pair pair;
  pair.connect();
  pair.settle();
  pair.launcher.session.send_flow(FrameType::kInput, std::string(kWindow, 'i'));
  pair.launcher.session.send_flow(FrameType::kInput, "");
  pair.settle();
  ASSERT_EQ(pair.supervisor.flow.size(), 2u);
  EXPECT_EQ(pair.supervisor.flow[1], "");
}

TEST(LinkTest, SendsHeartbeatsToASilentReceiver) {
  Pair pair;
  pair.connect();
  pair.settle();
  pair.supervisor.session.send_flow(FrameType::kOutput, std::string(kWindow + 1, 'x'));
  EXPECT_FALSE(pair.supervisor.session.has_bytes());
  pair.supervisor.session.send_heartbeat();
  const std::vector<Frame> frames = frames_in(pair.supervisor.session.take_bytes(9, 1));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.type, FrameType::kHeartbeat);
  EXPECT_EQ(frames[0].header.sent_at_ns, 9u);
}

TEST(LinkTest, SendsHeartbeatsWithTheSendersDelayDespiteOtherFrames) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& supervisor = pair.supervisor.session;
  Session& launcher = pair.launcher.session;
  ASSERT_TRUE(supervisor.send(FrameType::kEvent, "event").ok());
  supervisor.send_heartbeat(encode_delay(-5));
  const Result<std::vector<Frame>> frames = launcher.receive(supervisor.take_bytes(77, 1 << 20));
  ASSERT_TRUE(frames.ok());
  ASSERT_EQ(frames->size(), 2u);
  EXPECT_EQ((*frames)[1].header.type, FrameType::kHeartbeat);
  EXPECT_EQ(*decode_delay((*frames)[1].payload), -5);
  EXPECT_EQ(launcher.last_stamp_ns(), 77u);
  EXPECT_FALSE(decode_delay("short").ok());
}

TEST(LinkTest, DeliversAliveAndIgnoresItsAcknowledgement) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& launcher = pair.launcher.session;
  ASSERT_TRUE(launcher.send(FrameType::kCommand, "not acknowledged").ok());
  const std::string long_name(2 * kMaxOverdueBytes, 'x');
  const Result<std::vector<Frame>> frames = launcher.receive(alive_frame({1, 2, long_name}, 9));
  ASSERT_TRUE(frames.ok());
  ASSERT_EQ(frames->size(), 1u);
  const Result<Alive> alive = decode_alive((*frames)[0].payload);
  ASSERT_TRUE(alive.ok());
  EXPECT_EQ(alive->loop_silent_ns, 1u);
  EXPECT_EQ(alive->overdue_ns, 2u);
  EXPECT_EQ(alive->overdue.size(), kMaxOverdueBytes);
  EXPECT_FALSE(launcher.all_acknowledged());
  EXPECT_FALSE(decode_alive("short").ok());
}

TEST(LinkTest, TakesAtLeastOneFrameAndStopsAfterTheLimit) {
  Pair pair;
  pair.connect();
  pair.settle();
  Session& sender = pair.launcher.session;
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(sender.send(FrameType::kCommand, std::string(100, 'c')).ok());
  EXPECT_EQ(sender.take_bytes(1, 0).size(), kHeaderBytes + 100);
  EXPECT_EQ(sender.take_bytes(1, 149).size(), 2 * (kHeaderBytes + 100));
  EXPECT_EQ(sender.take_bytes(1, 1u << 20).size(), 2 * (kHeaderBytes + 100));
  EXPECT_FALSE(sender.has_bytes());
}

TEST(LinkTest, BoundsUnacknowledgedControlFrames) {
  Session session(kWindow);
  const std::string large(kMaxPayloadBytes, 'c');
  std::size_t sent = 0;
  while (session.send(FrameType::kCommand, large).ok()) ++sent;
  EXPECT_EQ(sent, kMaxUnacknowledgedBytes / kMaxPayloadBytes);
  EXPECT_EQ(session.send(FrameType::kCommand, "c").error().code, Code::kResourceExhausted);
}

TEST(LinkTest, AcknowledgementsFreeRoom) {
  Pair pair;
  pair.connect();
  const std::string large(kMaxPayloadBytes, 'c');
  for (std::size_t i = 0; i < 3 * kMaxUnacknowledgedBytes / kMaxPayloadBytes; ++i) {
    ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, large).ok()) << i;
    pair.settle();
  }
  EXPECT_TRUE(pair.launcher.session.all_acknowledged());
}

TEST(LinkTest, AcknowledgesLongOutputWithoutHeartbeats) {
  Pair pair(1u << 20);
  pair.connect();
  pair.settle();
  for (int i = 0; i < 40; ++i) {
    pair.supervisor.session.send_flow(FrameType::kOutput, std::string(64u << 10, 'o'));
    pair.settle();
    pair.launcher.session.grant(64u << 10);
  }
  pair.settle();
  EXPECT_EQ(pair.launcher.flow.size(), 40u);
  EXPECT_TRUE(pair.supervisor.session.all_acknowledged());
}

// ---- Replay ---------------------------------------------------------------------------------

std::vector<std::string> numbered(const std::string& word, int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.push_back(word + std::to_string(i));
  return texts;
}

std::string output_of(std::uint32_t rank, std::string_view bytes, bool end = false) {
  return encode_output(OutputChunk{0, rank, 1, end, bytes});
}

TEST(LinkTakeoverTest, AttachCarriesItsNumber) {
  const AttachRequest request{"job", "token", "build", 7};
  EXPECT_EQ(decode_attach(encode_attach(request))->takeover, 7u);
  const std::string bytes = encode_attach(request);
  EXPECT_FALSE(decode_attach(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(decode_attach(bytes + "x").ok());
}

TEST(LinkTakeoverTest, ANewLauncherGetsUnacknowledgedBytesOnceButNoOldControl) {
  Pair pair;
  pair.connect();
  pair.settle();
  const auto send_output = [&](const std::string& payload) {
    pair.supervisor.session.send_flow(FrameType::kOutput, payload);
  };
  // The three states: received and acknowledged; sent, but the acknowledgement was lost; never
  // sent.
  send_output(output_of(0, "acknowledged"));
  pair.settle();
  ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, "acknowledges").ok());
  pair.settle();
  ASSERT_TRUE(pair.supervisor.session.send(FrameType::kEvent, "old event").ok());
  send_output(output_of(1, "in flight"));
  EXPECT_NE(pair.supervisor.session.take_bytes(0, 1u << 20), "");
  send_output(output_of(1, "", true));
  ASSERT_TRUE(pair.supervisor.session.send(FrameType::kEvent, "old queued event").ok());

  const std::vector<OutputChunk> waiting = pair.supervisor.session.take_over();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].bytes, "in flight");
  EXPECT_TRUE(waiting[1].end);
  EXPECT_FALSE(pair.supervisor.session.is_attached());

  // The same supervisor, and a launcher without any state.
  End next(End::Role::kLauncher, kWindow);
  const auto settle = [&] {
    for (int round = 0; round < 10; ++round) {
      ASSERT_TRUE(pair.supervisor.receive(next.session.take_bytes(1, 1u << 20)));
      ASSERT_TRUE(next.receive(pair.supervisor.session.take_bytes(1, 1u << 20)));
    }
  };
  pair.supervisor.control.clear();
  ASSERT_TRUE(pair.supervisor.session.send(FrameType::kEvent, "new state").ok());
  pair.supervisor.session.link_up();
  next.link_up();
  settle();
  EXPECT_EQ(next.control, std::vector<std::string>{"new state"});
  EXPECT_EQ(next.flow,
            (std::vector<std::string>{output_of(1, "in flight"), output_of(1, "", true)}));
  // Both directions start again with commands, credit and acknowledgements.
  next.session.grant(next.flow_bytes);
  ASSERT_TRUE(next.session.send(FrameType::kCommand, "stop").ok());
  settle();
  EXPECT_EQ(pair.supervisor.control, std::vector<std::string>{"stop"});
  constexpr std::size_t kFrames = 4 * kWindow / 1000;
  for (std::size_t sent = 0; sent < kFrames; ++sent) {
    pair.supervisor.session.send_flow(FrameType::kOutput, output_of(2, std::string(988, 'x')));
    settle();
    next.session.grant(1000);
    settle();
  }
  EXPECT_EQ(next.flow.size(), 2 + kFrames);
}

TEST(LinkTakeoverTest, RejectsTheOldLauncherAfterATakeover) {
  Pair pair;
  pair.connect();
  pair.settle();
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(pair.supervisor.session.send(FrameType::kEvent, "event").ok());
  pair.settle();
  pair.disconnect();
  (void)pair.supervisor.session.take_over();
  pair.supervisor.session.link_up();
  EXPECT_FALSE(pair.supervisor.session.attached(3).ok());
}

TEST(LinkReplayTest, NeitherLosesNorRepeatsFramesIfTheTransportBreaksAtAnyByte) {
  const std::vector<std::string> commands = numbered("command", 3);
  const std::vector<std::string> outputs = numbered("output", 4);
  std::size_t length = 1;
  for (std::size_t lost_at = 0; lost_at <= length; ++lost_at) {
    for (const bool lose_answers : {false, true}) {
      Pair pair;
      pair.connect();
      for (const std::string& text : commands)
        ASSERT_TRUE(pair.launcher.session.send(FrameType::kCommand, text).ok());
      for (const std::string& text : outputs)
        pair.supervisor.session.send_flow(FrameType::kOutput, text);
      const std::string down = pair.launcher.session.take_bytes(1, 1u << 20);
      ASSERT_TRUE(pair.supervisor.receive(std::string_view(down).substr(0, lost_at)));
      const std::string up = pair.supervisor.session.take_bytes(1, 1u << 20);
      length = std::max(down.size(), up.size());
      const std::string_view received = std::string_view(up).substr(0, lose_answers ? 0 : lost_at);
      ASSERT_TRUE(pair.launcher.receive(received));
      pair.disconnect();
      pair.connect();
      pair.settle();
      pair.heartbeat();
      EXPECT_EQ(pair.supervisor.control, commands) << lost_at;
      EXPECT_EQ(pair.launcher.flow, outputs) << lost_at;
      EXPECT_TRUE(pair.launcher.session.all_acknowledged());
      EXPECT_TRUE(pair.supervisor.session.all_acknowledged());
    }
  }
  EXPECT_GT(length, 200u);
}

// Random traffic over transports that break at random bytes. Both ends grant credit late and in
// pieces.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed) {}

  void run(int steps) {
    pair_.connect();
    for (int step = 0; step < steps && !failed_; ++step) {
      One& one = pick(2) == 0 ? down_ : up_;
      switch (pick(12)) {
        case 0:
        case 1:
          produce_control(one);
          break;
        case 2:
        case 3:
          produce_flow(one);
          break;
        case 4:
          grant(one);
          break;
        case 5:
          one.from->session.send_heartbeat();
          break;
        case 6:
          if (pick(8) == 0) reconnect();
          break;
        default:
          move(one);
          break;
      }
      check(one);
    }
    finish();
  }

 private:
  // One direction.
  struct One {
    End* from;
    End* to;
    std::string in_flight;
    std::vector<std::string> control;
    std::vector<std::string> flow;
    std::uint64_t granted = kWindow;
  };

  std::size_t pick(std::size_t below) { return random_() % below; }
  std::string text() { return std::string(pick(200), static_cast<char>('a' + pick(26))); }

  void produce_control(One& one) {
    one.control.push_back(std::to_string(one.control.size()) + text());
    ASSERT_TRUE(one.from->session.send(one.from->control_type(), one.control.back()).ok());
  }
  void produce_flow(One& one) {
    one.flow.push_back(std::to_string(one.flow.size()) + text());
    one.from->session.send_flow(one.from->flow_type(), one.flow.back());
  }
  // The owner consumes the received bytes in pieces.
  void grant(One& one) {
    const std::uint64_t open = kWindow + one.to->flow_bytes - one.granted;
    const std::uint64_t some = open == 0 ? 0 : pick(open + 1);
    one.granted += some;
    one.to->session.grant(some);
  }
  void move(One& one) {
    if (pick(2) == 0) {
      const bool due = one.from->session.has_bytes();
      const std::string taken = one.from->session.take_bytes(1, pick(600));
      EXPECT_EQ(due, !taken.empty());
      one.in_flight += taken;
    }
    const std::size_t some = pick(one.in_flight.size() + 1);
    const std::string bytes = one.in_flight.substr(0, some);
    one.in_flight.erase(0, some);
    if (!one.to->receive(bytes)) failed_ = true;
    EXPECT_FALSE(failed_) << "a session rejected bytes of its peer";
  }
  void reconnect() {
    down_.in_flight.clear();
    up_.in_flight.clear();
    pair_.disconnect();
    pair_.connect();
    ++reconnects_;
  }
  void check(const One& one) {
    EXPECT_LE(one.to->flow_bytes, one.granted) << "more than the receiver granted";
    if (one.to->control.size() > one.control.size() || one.to->flow.size() > one.flow.size())
      failed_ = true;
    EXPECT_FALSE(failed_) << "a frame arrived twice";
  }
  void finish() {
    reconnect();
    for (int round = 0; round < 2000; ++round) {
      pair_.heartbeat();
      for (One* one : {&down_, &up_}) {
        one->to->session.grant(kWindow + one->to->flow_bytes - one->granted);
        one->granted = kWindow + one->to->flow_bytes;
      }
      if (pair_.launcher.session.all_acknowledged() && pair_.supervisor.session.all_acknowledged())
        break;
    }
    for (const One* one : {&down_, &up_}) {
      EXPECT_EQ(one->to->control, one->control);
      EXPECT_EQ(one->to->flow, one->flow);
      EXPECT_TRUE(one->from->session.all_acknowledged());
    }
    EXPECT_GT(reconnects_, 1);
  }

  std::mt19937_64 random_;
  Pair pair_;
  One down_{&pair_.launcher, &pair_.supervisor, {}, {}, {}};
  One up_{&pair_.supervisor, &pair_.launcher, {}, {}, {}};
  int reconnects_ = 0;
  bool failed_ = false;
};

TEST(LinkReplayTest, NeitherLosesNorRepeatsFramesAcrossRandomDisconnects) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run(3000);
    if (HasFailure()) return;
  }
}

TEST(SendQueueTest, FlowWaitsForCreditAndControlDoesNot) {
  SendQueue queue;
  queue.push_flow(FrameType::kOutput, "12345");
  ASSERT_TRUE(queue.push(FrameType::kEvent, "exit").ok());
  EXPECT_EQ(queue.take_next()->payload, "exit");
  EXPECT_EQ(queue.take_next(), nullptr);
  queue.raise_credit(4);
  EXPECT_FALSE(queue.has_next());
  queue.raise_credit(9);
  queue.raise_credit(1);  // A lower number changes nothing.
  EXPECT_EQ(queue.take_next()->sequence, 2u);
  EXPECT_EQ(queue.flow_room(), 4u);
}

TEST(SendQueueTest, ResendsUnacknowledgedFrames) {
  SendQueue queue;
  for (const char* payload : {"a", "b", "c"})
    ASSERT_TRUE(queue.push(FrameType::kEvent, payload).ok());
  while (queue.take_next() != nullptr) {
  }
  ASSERT_TRUE(queue.acknowledge(1).ok());
  EXPECT_EQ(queue.control_bytes(), 2u);
  queue.send_again();
  EXPECT_EQ(queue.take_next()->payload, "b");
  EXPECT_EQ(queue.take_next()->sequence, 3u);
  EXPECT_FALSE(queue.acknowledge(4).ok()) << "the frame was never sent";
  EXPECT_FALSE(queue.acknowledge(0).ok()) << "the peer requested a dropped frame";
}

TEST(ReceiveWindowTest, TakesEachSequenceOnceAndInOrder) {
  ReceiveWindow window(400);
  const auto take = [&](std::uint64_t sequence) {
    FrameHeader header;
    header.sequence = sequence;
    return window.take(header);
  };
  EXPECT_TRUE(take(1).value());
  EXPECT_FALSE(take(1).value());
  EXPECT_FALSE(take(3).ok());
  FrameHeader header;
  window.write_into(header);
  EXPECT_EQ(header.acknowledged, 1u);
  EXPECT_EQ(header.credit, 400u);
  EXPECT_FALSE(window.ack_due());
  window.grant(100);  // A quarter of the window.
  EXPECT_TRUE(window.ack_due());
}

}  // namespace
}  // namespace ivy::session
