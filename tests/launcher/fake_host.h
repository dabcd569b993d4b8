// SPDX-License-Identifier: Apache-2.0
// A host for tests: the test controls the links to it, and its supervisor is one end of a real
// session::Session. Thread: the loop's.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/links/host_link.h"
#include "proto/os/clock.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy {

// A host whose links are FakeLinks and whose supervisor is one session::Session.
class FakeHost {
 public:
  explicit FakeHost(boost::asio::io_context& loop) : loop_(loop), session_(64u << 10) {}

  boost::asio::io_context& loop() { return loop_; }
  void attach(class FakeLink* link) {
    current_ = link;
    session_.link_up();
  }
  void detach(class FakeLink* link) {
    if (current_ == link) current_ = nullptr;
  }
  // Expires with this host. A link can live longer: if a job released it, it closes with the loop.
  std::weak_ptr<bool> life() const { return life_; }
  void receive(class FakeLink* link, std::string_view bytes);
  void pump();
  void send(const Event& event) {
    ASSERT_TRUE(session_.send(session::FrameType::kEvent, event.SerializeAsString()).ok());
    pump();
  }
  void send_note(const std::string& text) {
    Event event;
    event.mutable_note()->set_text(text);
    send(event);
  }
  void cut();  // Breaks the transport.
  bool is_attached() const { return current_ != nullptr; }

  // Sends output of a rank; an empty text ends the stream.
  void print(std::uint32_t rank, std::uint8_t stream, std::string_view text) {
    session_.send_flow(session::FrameType::kOutput,
                       session::encode_output({0, rank, stream, text.empty(), text}));
    pump();
  }

  enum class Answer { kUp, kRefuse, kSilent, kNoSuchJob };
  Answer answer = Answer::kUp;
  LinkDown rejection{LinkFailure::kRefused, "refused", ""};  // Reported for kRefuse.
  LinkDown breaking{LinkFailure::kBroken, "broken", ""};     // Reported by cut().
  LinkStep doing;  // Reported during a dial; empty: nothing.
  std::function<void(const Command&)> on_command;
  bool has_heartbeat = false;  // As a supervisor: it answers every frame.
  bool deaf = false;           // Accepts bytes and sends nothing, as after a silent cut.
  int dials = 0;
  OpenRequest asked;  // Of the last dial.
  std::vector<Command> commands;
  int writes = 0;  // Writes that arrived, heartbeats included.
  int alives = 0;  // Calls of send_alive().

 private:
  boost::asio::io_context& loop_;
  session::Session session_;
  class FakeLink* current_ = nullptr;
  const std::shared_ptr<bool> life_ = std::make_shared<bool>(true);
};

class FakeLink : public HostLink {
 public:
  FakeLink(FakeHost& host, HostLinkEvents& owner)
      : host_(host), host_life_(host.life()), owner_(owner) {}
  ~FakeLink() override {
    *alive_ = false;
    detach();
  }
  void open(const OpenRequest& request) override {
    ++host_.dials;
    host_.asked = request;
    if (!host_.doing.empty()) post([this] { owner_.link_progress(*this, host_.doing); });
    if (host_.answer == FakeHost::Answer::kSilent) return;
    post([this] {
      switch (host_.answer) {
        case FakeHost::Answer::kUp:
          host_.attach(this);
          return owner_.link_up(*this, LinkUp{Transport::kSsh, "10.0.0.1", "10.0.0.2", "", ""});
        case FakeHost::Answer::kRefuse:
          return owner_.link_down(*this, host_.rejection);
        default:
          return owner_.link_down(*this, LinkDown{LinkFailure::kNoSuchJob, "no such job", ""});
      }
    });
  }
  void write(std::string bytes) override {
    post([this, bytes = std::move(bytes)] {
      if (!host_.deaf) host_.receive(this, bytes);
      owner_.link_drained(*this);
    });
  }
  void send_alive(std::string_view) override { ++host_.alives; }
  void close() override {
    closed_ = true;
    detach();
  }
  void deliver(std::string bytes) {
    post([this, bytes = std::move(bytes)] { owner_.link_bytes(*this, bytes); });
  }
  void break_off() {
    post([this] { owner_.link_down(*this, host_.breaking); });
  }

 private:
  void post(std::function<void()> action) {
    boost::asio::post(host_.loop(), [this, action, alive = alive_] {
      if (*alive && !closed_) action();
    });
  }
  void detach() {
    if (!host_life_.expired()) host_.detach(this);
  }
  FakeHost& host_;
  const std::weak_ptr<bool> host_life_;
  HostLinkEvents& owner_;
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

inline void FakeHost::receive(FakeLink* link, std::string_view bytes) {
  if (link != current_) return;
  ++writes;
  if (has_heartbeat) session_.send_heartbeat();
  std::string_view rest = bytes;
  for (;;) {
    Result<std::vector<session::Frame>> frames = session_.receive(rest);
    ASSERT_TRUE(frames.ok()) << frames.error().message;
    rest = {};
    if (frames->empty()) break;
    for (const session::Frame& frame : *frames) {
      if (frame.header.type == session::FrameType::kAttach) {
        session_.send_handshake(session::FrameType::kAttached, "");
        ASSERT_TRUE(session_.attached(frame.header.acknowledged).ok());
      } else if (frame.header.type == session::FrameType::kCommand) {
        commands.emplace_back().ParseFromString(frame.payload);
        if (on_command) on_command(Command(commands.back()));
      }
    }
  }
  pump();
}

inline void FakeHost::pump() {
  if (deaf) return;
  while (current_ != nullptr && session_.has_bytes())
    current_->deliver(session_.take_bytes(static_cast<std::uint64_t>(monotonic_ns()), 1u << 20));
}

inline void FakeHost::cut() {
  FakeLink* link = current_;
  current_ = nullptr;
  if (link != nullptr) link->break_off();
}

}  // namespace ivy
