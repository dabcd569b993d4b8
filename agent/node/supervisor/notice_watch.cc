// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/notice_watch.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "agent/node/facts/cloud_notices.h"
#include "agent/node/spawn/server_child.h"
#include "agent/node/workers/lease.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Most jobs have started their workers by then.
constexpr std::chrono::seconds kStartDelay{2};
constexpr std::chrono::seconds kFindLimit{5};
constexpr std::size_t kMaxName = 256;

std::string machine_text(const std::string& name) {
  return read_file("/sys/class/dmi/id/" + name, kMaxName).value_or("");
}

// Returns the name of this machine's cloud for `ivy-node notices`; empty: none.
std::string service_here() {
  switch (cloud_of(machine_text("sys_vendor"), machine_text("product_name"),
                   machine_text("board_vendor"))) {
    case Cloud::kNone:
      return "";
    case Cloud::kAws:
      return "aws";
    case Cloud::kGcp:
      return "gcp";
    case Cloud::kAzure:
      return "azure";
  }
  return "";
}

}  // namespace

NoticeWatch::NoticeWatch(SupervisorContext& context)
    : context_(context),
      start_timer_(context.loop),
      term_timer_(context.loop),
      lines_(context.loop, *this) {}

void NoticeWatch::begin(const Hello& hello) {
  notice_ns_ = hello.notice_ms() * kNanosPerMilli;
  if (!hello.watch_notices() || pid_ != 0) return;
  service_ = hello.notice_service();
  start_timer_.expires_after(kStartDelay);
  start_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) find_cloud();
  });
}

void NoticeWatch::find_cloud() {
  if (!service_.empty()) return start(service_);
  context_.blocking.run(
      "the name of this machine's cloud", kFindLimit,
      [](const BlockingPool::Label&) -> Result<std::string> { return service_here(); },
      [this](const Result<std::string>& service) {
        if (service.ok() && !service->empty()) start(*service);
      });
}

void NoticeWatch::start(const std::string& service) {
  std::array<int, 2> ends{};
  if (pid_ != 0 || pipe2(ends.data(), O_CLOEXEC) != 0) return;
  Descriptor from(ends[0]);
  const Descriptor to(ends[1]);
  ServerChild child{context_.start.program_directory + "/ivy-node",
                    {"ivy-node", "notices", service},
                    {{to.get(), STDOUT_FILENO}},
                    context_.is_in_step()};
  const pid_t started = start_server(std::move(child));
  if (started < 0) return;
  pid_ = started;
  context_.containment->spare(pid_);
  lines_.open(std::move(from), lifetime_);
}

void NoticeWatch::server_line(ServerLines&, const std::string& line) {
  std::vector<std::string> fields;
  std::string_view rest = line;
  while (!rest.empty()) fields.emplace_back(take_part(rest, '\t'));
  Event event;
  if (fields.size() == 2 && fields[0] == "note") {
    event.mutable_note()->set_text(fields[1]);
    return context_.events.send(event);
  }
  if (fields.size() != 4) return;
  HostNotice& notice = *event.mutable_host_notice();
  notice.set_source(fields[2]);
  notice.set_reason(fields[3]);
  notice.set_deadline_ns(to_number<std::uint64_t>(fields[1]).value_or(0));
  notice.set_withdrawn(fields[0] == "withdrawn");
  context_.events.send(event);
}

bool NoticeWatch::terminated(std::function<void()> expired) {
  if (notice_ns_ == 0 || std::exchange(has_term_, true)) return false;
  Event event;
  event.mutable_host_notice()->set_source("SIGTERM to its supervisor");
  event.mutable_host_notice()->set_deadline_ns(static_cast<std::uint64_t>(monotonic_ns()) +
                                               notice_ns_);
  context_.events.send(event);
  term_timer_.expires_after(std::chrono::nanoseconds(notice_ns_));
  term_timer_.async_wait([expired = std::move(expired)](const boost::system::error_code& error) {
    if (!error) expired();
  });
  return true;
}

void NoticeWatch::reaped(pid_t pid) {
  if (pid_ == 0 || pid != pid_) return;
  pid_ = 0;
  lines_.read_some();
  lines_.close();
}

void NoticeWatch::spare_again() const {
  if (pid_ != 0) context_.containment->spare(pid_);
}

}  // namespace ivy
