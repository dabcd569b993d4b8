// SPDX-License-Identifier: Apache-2.0
// A worker on the control socket that performs the steps in its arguments one after the other.
// "3:STEP" applies only to rank 3. It prints events with CLOCK_MONOTONIC nanoseconds.
//
//   attach            connect to IVY_CONTROL and attach as IVY_RANK
//   leave             Leave, and wait for the answer
//   exit:CODE         exit immediately, without a Leave
//   sleep:MS
//   wait-dead:N       wait until N ranks are dead, then print them
//   wait-left:RANK    wait until that rank has left
//   wait-report:N     wait until there are N reports, then print them
//   report:BLAMED,TEXT
//   segment:NAME,BYTES,MEMBERS
//   enter:NAME,SEQUENCE    start an all_reduce of 1024 f32 and stay in it
//   finish:NAME,SEQUENCE
//   ignore-term       on SIGTERM, only print a line
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/operation.h"
#include "tests/support/control_client.h"

namespace ivy::test {
namespace {

using comm_status::OperationRecord;
using comm_status::Outcome;
using comm_status::Phase;
using comm_status::RankState;
using comm_status::RankStatus;

constexpr std::chrono::minutes kTimeout{2};

long long now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::uint32_t number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : static_cast<std::uint32_t>(std::atol(text));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

[[noreturn]] void fail(const std::string& why) {
  std::printf("failed: %s\n", why.c_str());
  std::fflush(stdout);
  _exit(90);
}

const char* state_name(RankState state) {
  constexpr const char* kNames[] = {"alive", "left", "exited", "signalled", "died", "host-lost"};
  return kNames[static_cast<std::uint32_t>(state)];
}

class Steps {
 public:
  void run(const std::string& step) {
    const std::string name = step.substr(0, step.find(':'));
    const std::string value = name.size() < step.size() ? step.substr(name.size() + 1) : "";
    if (name == "attach") return attach();
    if (name == "leave") return leave();
    if (name == "exit") _exit(std::atoi(value.c_str()));
    if (name == "sleep")
      return std::this_thread::sleep_for(std::chrono::milliseconds(std::atol(value.c_str())));
    if (name == "wait-dead") return wait_dead(static_cast<std::uint32_t>(std::atol(value.c_str())));
    if (name == "wait-left") return wait_left(static_cast<std::uint32_t>(std::atol(value.c_str())));
    if (name == "wait-report")
      return wait_report(static_cast<std::size_t>(std::atol(value.c_str())));
    if (name == "report") return report(split(value));
    if (name == "segment") return segment(split(value));
    if (name == "enter" || name == "finish") return operate(name == "finish", split(value));
    if (name == "ignore-term") return ignore_term();
    fail("no such step: " + step);
  }

 private:
  void attach() {
    const char* const path = std::getenv("IVY_CONTROL");
    if (path == nullptr) fail("no IVY_CONTROL");
    Result<ControlClient> client = ControlClient::connect(path);
    if (!client.ok()) fail(client.error().message);
    client_.emplace(std::move(*client));
    const auto attached = client_->attach(number_of("IVY_RANK"), number_of("IVY_GENERATION"));
    if (!attached.ok()) fail(attached.error().message);
    std::printf("attached slot=%u generation=%u pid=%d\n", attached->slot,
                client_->page().shape().generation, getpid());
  }
  void leave() {
    if (const Result<void> left = client_->leave(); !left.ok()) fail(left.error().message);
    std::printf("left\n");
  }
  void wait_dead(std::uint32_t count) {
    comm_status::StatusPage& page = client_->page();
    if (!client_->wait_for_event([&] { return page.deaths() >= count; }, kTimeout))
      fail("no rank has died");
    const long long at_ns = now_ns();
    for (std::uint32_t rank = 0; rank < page.shape().world_size; ++rank) {
      const RankStatus status = page.rank(rank);
      if (status.state == RankState::kAlive || status.state == RankState::kLeft) continue;
      std::printf("dead rank=%u state=%s code=%d pid=%d host=%s at_ns=%lld\n", rank,
                  state_name(status.state), status.code, status.pid,
                  page.host_name(status.host).c_str(), at_ns);
    }
  }
  void wait_left(std::uint32_t rank) {
    if (!client_->wait_for_event(
            [&] { return client_->page().rank(rank).state == RankState::kLeft; }, kTimeout))
      fail("the rank has not left");
    std::printf("has-left rank=%u\n", rank);
  }
  void wait_report(std::size_t count) {
    comm_status::StatusPage& page = client_->page();
    if (!client_->wait_for_event([&] { return page.reports_after(0).size() >= count; }, kTimeout))
      fail("no report");
    for (const comm_status::PageReport& report : page.reports_after(0))
      std::printf("report reporter=%u blamed=%u communicator=%s text=%s\n", report.reporter,
                  report.blamed, report.communicator.c_str(), report.text.c_str());
  }
  void report(const std::vector<std::string>& parts) {
    control::Report report;
    report.kind = control::ReportKind::kMismatch;
    report.blamed = static_cast<std::uint32_t>(std::stoul(parts.at(0)));
    report.sequence = 7;
    report.communicator = "world";
    report.text = parts.at(1);
    client_->report(report);
  }
  void segment(const std::vector<std::string>& parts) {
    control::Segment segment;
    segment.name = parts.at(0);
    segment.bytes = std::stoull(parts.at(1));
    segment.members = static_cast<std::uint32_t>(std::stoul(parts.at(2)));
    const Result<int> fd = client_->segment(segment);
    if (!fd.ok())
      return static_cast<void>(std::printf("refused: %s\n", fd.error().message.c_str()));
    std::printf("segment %s\n", segment.name.c_str());
    close(*fd);
  }
  void operate(bool finishes, const std::vector<std::string>& parts) {
    comm_status::SlotView slot = client_->slot();
    OperationRecord record;
    record.sequence = std::stoull(parts.at(1));
    record.count = 1024;
    record.entered_ns = static_cast<std::uint64_t>(now_ns());
    record.communicator_hash = comm_status::communicator_hash(parts.at(0));
    record.operation = comm_status::Operation::kAllReduce;
    record.dtype = comm_status::Dtype::kF32;
    record.reduction = comm_status::Reduction::kSum;
    if (slot.communicator_name(0) != parts.at(0)) slot.name_communicator(0, parts.at(0));
    slot.enter(record);
    slot.set_phase(0, Phase::kWaiting);
    if (!finishes) return static_cast<void>(std::printf("entered\n"));
    record.ended_ns = static_cast<std::uint64_t>(now_ns());
    record.outcome = Outcome::kDone;
    slot.finish(record);
    std::printf("finished\n");
  }
  static void ignore_term() {
    std::signal(SIGTERM, [](int) {
      const char text[] = "TERM\n";
      [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
    });
  }

  std::optional<ControlClient> client_;
};

}  // namespace
}  // namespace ivy::test

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  const std::string rank = std::to_string(ivy::test::number_of("IVY_RANK")) + ":";
  ivy::test::Steps steps;
  for (int i = 1; i < argc; ++i) {
    std::string step = argv[i];
    const std::size_t digits = step.find_first_not_of("0123456789");
    const bool is_for_one = digits > 0 && digits < step.size() && step[digits] == ':';
    if (is_for_one && !step.starts_with(rank)) continue;
    steps.run(is_for_one ? step.substr(digits + 1) : step);
  }
  return 0;
}
