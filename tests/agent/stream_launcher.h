// SPDX-License-Identifier: Apache-2.0
// A launcher for tests that reaches its supervisor through an agent's Open stream: it runs the
// session protocol, grants credit immediately, and records the events. Thread: the test's; each
// stream has an internal reader thread. Lifetime: streams end with this object, but the job does
// not (see end_job).
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/agent.grpc.pb.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/session.h"

namespace ivy::test {

// One Open call.
class AgentStream {
 public:
  AgentStream(const std::shared_ptr<grpc::Channel>& channel, const agent::v1::OpenJob& job);
  ~AgentStream();
  AgentStream(const AgentStream&) = delete;
  AgentStream& operator=(const AgentStream&) = delete;

  // Waits for Opened; returns false if the stream ends without it.
  bool opened();
  const agent::v1::Opened& answer() const { return opened_; }
  bool write(std::string data);
  void half_close();
  void break_off() { context_.TryCancel(); }
  // Stops reading until resume(), so that gRPC's windows fill up.
  void pause() { is_paused_ = true; }
  void resume() { is_paused_ = false; }
  std::string take();
  // Size of the largest data message so far, in bytes.
  std::size_t largest();
  bool has_ended();
  // Waits for the end of the stream.
  grpc::Status status();
  std::string trailer(const std::string& name);

 private:
  void read();

  grpc::ClientContext context_;
  std::unique_ptr<agent::v1::Agent::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<agent::v1::OpenRequest, agent::v1::OpenReply>> stream_;
  std::atomic<bool> is_paused_ = false;
  std::mutex mutex_;
  std::string inbox_;
  std::size_t largest_ = 0;
  bool has_opened_ = false;
  bool has_ended_ = false;
  agent::v1::Opened opened_;
  grpc::Status status_;
  std::thread reader_;
};

class StreamLauncher {
 public:
  explicit StreamLauncher(std::string bundle, std::uint64_t window_bytes = 1u << 20);

  const std::string& job_id() const { return job_id_; }
  agent::v1::OpenJob job(bool reattach = false) const;
  // Opens (again) and attaches.
  void open(const std::shared_ptr<grpc::Channel>& channel, bool reattach = false);
  AgentStream& stream() { return *stream_; }
  bool has_stream() const { return stream_ != nullptr; }
  void drop_stream();

  void send_hello();
  // Workers 0..count-1 run /bin/sh -c SCRIPT.
  void start(int count, const std::string& script);
  // Sends Finish to the supervisor and waits for the end of the stream.
  void finish();
  void stop_responding() { is_silent_ = true; }

  // Runs the session until the condition holds; returns false if it does not in time.
  bool wait(const std::function<bool()>& condition,
            std::chrono::milliseconds deadline = std::chrono::seconds(10));
  // Runs the session for this duration.
  void serve(std::chrono::milliseconds duration);
  std::string output(std::uint32_t rank) const;
  std::optional<Exited> exited(std::uint32_t rank) const;
  std::optional<Started> started(std::uint32_t rank) const;
  bool has_report() const;
  const std::string& report_reason() const { return report_reason_; }
  // Running processes of the job.
  std::vector<pid_t> processes() const;

 private:
  void send(const Command& command);
  void serve_once();
  void take(const session::Frame& frame);

  const std::string bundle_;
  const std::string job_id_;
  const std::string token_ = std::string(32, 't');
  session::Session session_;
  std::unique_ptr<AgentStream> stream_;
  std::chrono::steady_clock::time_point next_heartbeat_;
  bool is_silent_ = false;
  std::vector<Event> events_;
  std::string outputs_[8];
  std::string report_reason_;
};

}  // namespace ivy::test
