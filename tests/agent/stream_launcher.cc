// SPDX-License-Identifier: Apache-2.0
#include "tests/agent/stream_launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/contract/build.h"
#include "proto/os/clock.h"
#include "tests/agent/node_fixture.h"
#include "tests/support/eventually.h"

namespace ivy::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHeartbeat{250};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace

// ---- AgentStream --------------------------------------------------------------------------------

AgentStream::AgentStream(const std::shared_ptr<grpc::Channel>& channel,
                         const agent::v1::OpenJob& job)
    : stub_(agent::v1::Agent::NewStub(channel)), stream_(stub_->Open(&context_)) {
  agent::v1::OpenRequest request;
  *request.mutable_open() = job;
  // A failure ends the stream.
  stream_->Write(request);
  reader_ = std::thread([this] { read(); });
}

AgentStream::~AgentStream() {
  context_.TryCancel();
  is_paused_ = false;
  reader_.join();
}

void AgentStream::read() {
  agent::v1::OpenReply reply;
  for (;;) {
    while (is_paused_) std::this_thread::sleep_for(milliseconds(1));
    if (!stream_->Read(&reply)) break;
    const std::lock_guard lock(mutex_);
    if (reply.has_opened()) {
      has_opened_ = true;
      opened_ = reply.opened();
    } else {
      largest_ = std::max(largest_, reply.data().size());
      inbox_ += reply.data();
    }
  }
  const grpc::Status status = stream_->Finish();
  const std::lock_guard lock(mutex_);
  status_ = status;
  has_ended_ = true;
}

bool AgentStream::opened() {
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex_);
    return has_opened_ || has_ended_;
  }));
  const std::lock_guard lock(mutex_);
  return has_opened_;
}

bool AgentStream::write(std::string data) {
  agent::v1::OpenRequest request;
  request.set_data(std::move(data));
  return stream_->Write(request);
}

void AgentStream::half_close() { stream_->WritesDone(); }

std::string AgentStream::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(inbox_, {});
}

std::size_t AgentStream::largest() {
  const std::lock_guard lock(mutex_);
  return largest_;
}

bool AgentStream::has_ended() {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

grpc::Status AgentStream::status() {
  EXPECT_TRUE(eventually([&] { return has_ended(); }, std::chrono::seconds(10)));
  const std::lock_guard lock(mutex_);
  return status_;
}

std::string AgentStream::trailer(const std::string& name) {
  const auto& trailers = context_.GetServerTrailingMetadata();
  const auto found = trailers.find(name);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

// ---- StreamLauncher -----------------------------------------------------------------------------

StreamLauncher::StreamLauncher(std::string bundle, std::uint64_t window_bytes)
    : bundle_(std::move(bundle)), job_id_(random_job_id()), session_(window_bytes) {}

agent::v1::OpenJob StreamLauncher::job(bool reattach) const {
  agent::v1::OpenJob job;
  job.set_job_id(job_id_);
  job.set_reattach(reattach);
  job.set_bundle(bundle_);
  job.mutable_job()->set_user("alice");
  job.mutable_job()->add_hosts("node1");
  job.mutable_job()->set_host_count(1);
  job.mutable_job()->set_command_sha256(std::string(64, '5'));
  job.mutable_job()->set_program("/bin/sh");
  return job;
}

void StreamLauncher::open(const std::shared_ptr<grpc::Channel>& channel, bool reattach) {
  drop_stream();
  stream_ = std::make_unique<AgentStream>(channel, job(reattach));
  session_.link_up();
  session_.send_handshake(session::FrameType::kAttach,
                          session::encode_attach({job_id_, token_, std::string(build_name())}));
  if (session_.received_sequence() == 0) {
    EXPECT_TRUE(session_.attached(0).ok());
  }
  next_heartbeat_ = Clock::now() + kHeartbeat;
}

void StreamLauncher::drop_stream() {
  if (!stream_) return;
  stream_.reset();
  session_.link_down();
}

void StreamLauncher::send(const Command& command) {
  EXPECT_TRUE(session_.send(session::FrameType::kCommand, command.SerializeAsString()).ok());
}

void StreamLauncher::send_hello() {
  Command command;
  Hello& hello = *command.mutable_hello();
  hello.set_working_directory("/");
  hello.set_program("/bin/sh");
  hello.set_lease_ms(60'000);
  hello.set_grace_ms(1'000);
  send(command);
  EXPECT_TRUE(wait([&] { return !events_.empty() && events_.front().has_hello_ok(); }))
      << "no HelloOk";
}

void StreamLauncher::start(int count, const std::string& script) {
  Command command;
  HostPlan& plan = *command.mutable_start()->mutable_plan();
  for (const char* argument : {"/bin/sh", "-c", script.c_str()}) plan.add_arguments(argument);
  plan.set_working_directory("/");
  plan.set_world_size(static_cast<std::uint32_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    WorkerSpec* const worker = plan.add_workers();
    worker->set_rank(static_cast<std::uint32_t>(rank));
    worker->set_local_rank(static_cast<std::uint32_t>(rank));
  }
  send(command);
}

void StreamLauncher::finish() {
  Command command;
  command.mutable_finish();
  send(command);
  EXPECT_TRUE(wait([&] { return stream_->has_ended(); }));
  // Handles the frames that arrived before the end.
  serve_once();
}

bool StreamLauncher::wait(const std::function<bool()>& condition, milliseconds deadline) {
  const Clock::time_point end = Clock::now() + scaled_time(deadline);
  while (!condition()) {
    if (Clock::now() >= end) return false;
    serve_once();
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

void StreamLauncher::serve(milliseconds duration) {
  const Clock::time_point end = Clock::now() + duration;
  wait([&] { return Clock::now() >= end; }, duration + std::chrono::seconds(1));
}

void StreamLauncher::serve_once() {
  if (!stream_) return;
  if (!is_silent_ && Clock::now() >= next_heartbeat_) {
    next_heartbeat_ = Clock::now() + kHeartbeat;
    session_.send_heartbeat();
  }
  while (session_.has_bytes()) {
    // A frame may be larger than a message.
    std::string bytes = session_.take_bytes(monotonic_ns(), 32u << 10);
    for (std::size_t at = 0; at < bytes.size(); at += 64u << 10)
      if (!stream_->write(bytes.substr(at, 64u << 10))) break;
  }
  const std::string inbox = stream_->take();
  std::string_view bytes = inbox;
  for (bool again = !bytes.empty(); again; bytes = {}) {
    again = false;
    const Result<std::vector<session::Frame>> frames = session_.receive(bytes);
    ASSERT_TRUE(frames.ok()) << frames.error().message;
    for (const session::Frame& frame : *frames) {
      if (frame.header.type == session::FrameType::kAttached) {
        again = true;
        EXPECT_EQ(frame.payload, "");
        EXPECT_TRUE(session_.attached(frame.header.acknowledged).ok());
      }
      take(frame);
    }
  }
}

void StreamLauncher::take(const session::Frame& frame) {
  if (frame.header.type == session::FrameType::kEvent) {
    Event event;
    EXPECT_TRUE(event.ParseFromString(frame.payload));
    if (event.has_report()) report_reason_ = event.report().reason();
    events_.push_back(event);
  } else if (frame.header.type == session::FrameType::kOutput) {
    const Result<session::OutputChunk> chunk = session::decode_output(frame.payload);
    ASSERT_TRUE(chunk.ok());
    if (chunk->stream == 1) outputs_[chunk->rank % 8] += chunk->bytes;
    session_.grant(frame.payload.size());
  }
}

std::string StreamLauncher::output(std::uint32_t rank) const { return outputs_[rank % 8]; }

std::optional<Exited> StreamLauncher::exited(std::uint32_t rank) const {
  for (const Event& event : events_)
    if (event.has_exited() && event.exited().rank() == rank) return event.exited();
  return std::nullopt;
}

std::optional<Started> StreamLauncher::started(std::uint32_t rank) const {
  for (const Event& event : events_)
    if (event.has_started() && event.started().rank() == rank) return event.started();
  return std::nullopt;
}

bool StreamLauncher::has_report() const {
  for (const Event& event : events_)
    if (event.has_report()) return true;
  return false;
}

std::vector<pid_t> StreamLauncher::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || has_exited(pid)) continue;
    const std::string environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    const std::string arguments = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (environment.find("IVY_JOB_ID=" + job_id_) != std::string::npos ||
        arguments.find(job_id_) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

}  // namespace ivy::test
