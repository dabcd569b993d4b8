// SPDX-License-Identifier: Apache-2.0
// The probe answers one request at a time, in lines on its standard output: query() sends a request
// and starts its deadline, read_more() and take_text() read the answer, and end_request()
// continues. There are two requests: how the devices have changed, after a failure (settle(),
// send_findings()); and which processes hold memory of the devices, before a restart
// (await_memory(), check_memory(), query_later()).
#include "agent/node/supervisor/device_watch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cstdlib>
#include <utility>

#include "agent/devices/fabric_ports.h"
#include "agent/devices/small_files.h"
#include "agent/node/spawn/server_child.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/limits.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Long enough that a program that fails immediately needs no probe, and short enough that no
// framework has opened a device yet, so that two processes do not initialize the driver at the same
// time.
constexpr milliseconds kProbeDelay{500};
constexpr milliseconds kAnswerLimit{2'000};
// The limits while NVML is still being loaded: a report does not wait for that, but a start does.
constexpr milliseconds kEarlyReportLimit{500};
constexpr milliseconds kEarlyStartLimit{5'000};
constexpr milliseconds kMemoryPause{500};
// Covers a driver's own memory, and a context of a process that is just exiting.
constexpr std::uint64_t kFreeBytes = 512ull << 20;
constexpr std::size_t kPieceBytes = 16u << 10;
constexpr std::size_t kMaxTextBytes = 1u << 20;
constexpr std::size_t kMaxHolders = 4;

// Returns "GPU 3 holds 30000 MiB: pid 77 (python3) has 29000 MiB".
std::string held_text(const HeldMemory& held) {
  std::string text = held.device + " holds " + mebibytes(held.bytes);
  for (std::size_t i = 0; i < std::min(held.holders.size(), kMaxHolders); ++i) {
    const DeviceHolder& holder = held.holders[i];
    text += (i == 0 ? ": pid " : ", pid ") + std::to_string(holder.pid);
    if (!holder.name.empty()) text += " (" + holder.name + ")";
    if (holder.bytes > 0) text += " has " + mebibytes(holder.bytes);
  }
  if (held.holders.empty()) text += ", and NVML names no process";
  if (held.holders.size() > kMaxHolders)
    text += " and " + std::to_string(held.holders.size() - kMaxHolders) + " more";
  return text;
}

// Returns true if `devices` contains the UUID or is empty.
bool is_wanted(const std::vector<std::string>& devices, const std::string& uuid) {
  return devices.empty() || std::find(devices.begin(), devices.end(), uuid) != devices.end();
}

// Returns the memory in use on a device that no running process of the job holds.
std::uint64_t bytes_of_others(const HeldMemory& held, const std::vector<pid_t>& live) {
  std::uint64_t bytes = held.bytes;
  for (const DeviceHolder& holder : held.holders) {
    if (std::find(live.begin(), live.end(), holder.pid) == live.end()) continue;
    bytes -= std::min(bytes, holder.bytes);
  }
  return bytes;
}

// Tests shorten the wait with this variable, which cannot lengthen it.
milliseconds memory_wait() {
  const char* const text = std::getenv("IVY_TEST_DEVICE_MEMORY_WAIT_MS");
  const auto wanted = text == nullptr ? std::nullopt : to_number<int>(text);
  return wanted && *wanted >= 0 ? std::min(kDeviceMemoryWait, milliseconds(*wanted))
                                : kDeviceMemoryWait;
}

}  // namespace

DeviceWatch::DeviceWatch(SupervisorContext& context, DeviceWatchEvents& owner)
    : context_(context),
      owner_(owner),
      timer_(context.loop),
      output_(context.loop),
      buffer_(kPieceBytes, '\0') {}

void DeviceWatch::learn(const HostFacts& devices) {
  const DeviceVendor* const vendor = find_device_vendor(devices.accelerator_source());
  has_devices_ = vendor != nullptr && vendor->is_watched;
  used_before_.clear();
  for (const Accelerator& device : devices.devices())
    if (device.memory_bytes() > 0) used_before_[device.uuid()] = device.memory_bytes();
}

void DeviceWatch::begin(std::uint32_t generation) {
  generation_ = generation;
  must_check_ = was_lost_ = false;
  if (is_running()) {
    context_.containment->spare(pid_);
    write_all(requests_.get(), "begin\n");
    return;
  }
  if (!has_devices_ && !has_ports(device_root())) return;
  timer_.expires_after(kProbeDelay);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !must_check_) launch();
  });
}

void DeviceWatch::launch() {
  DescriptorPair answers = make_pipe();
  DescriptorPair requests = make_pipe();
  if (!answers || !requests) return;
  ServerChild child;
  child.program = context_.start.program_directory + "/ivy-probe";
  child.arguments = {child.program, "watch"};
  child.descriptors = {{requests.first.get(), STDIN_FILENO}, {answers.second.get(), STDOUT_FILENO}};
  child.in_step = context_.is_in_step();
  const pid_t pid = start_server(std::move(child));
  if (pid <= 0) return;
  pid_ = pid;
  context_.containment->spare(pid_);
  requests_ = std::move(requests.second);
  output_.assign(answers.first.release());
  read_more();
}

void DeviceWatch::read_more() {
  output_.async_read_some(boost::asio::buffer(buffer_),
                          [this](const boost::system::error_code& error, std::size_t bytes) {
                            if (error == boost::asio::error::operation_aborted) return;
                            text_.append(buffer_, 0, bytes);
                            if (error || text_.size() > kMaxTextBytes) return lost();
                            take_text();
                            read_more();
                          });
}

void DeviceWatch::take_text() {
  std::size_t begin = 0;
  for (std::size_t stop = text_.find('\n'); stop != std::string::npos;
       stop = text_.find('\n', begin)) {
    take_watch_line(std::string_view(text_).substr(begin, stop - begin), answer_);
    begin = stop + 1;
  }
  text_.erase(0, begin);
  if (answer_.is_complete && pending_ != Request::kNone) end_request(true);
}

void DeviceWatch::query(Request request) {
  pending_ = request;
  const bool is_ready = answer_.is_ready;
  answer_ = {};
  answer_.is_ready = is_ready;
  write_all(requests_.get(), request == Request::kHealth ? "look\n" : "memory\n");
  timer_.expires_after(is_ready                      ? kAnswerLimit
                       : request == Request::kHealth ? kEarlyReportLimit
                                                     : kEarlyStartLimit);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) end_request(false);
  });
}

void DeviceWatch::end_request(bool in_time) {
  timer_.cancel();
  const Request request = std::exchange(pending_, Request::kNone);
  if (request == Request::kHealth) send_findings(in_time);
  // A late answer would be mistaken for the answer to the next request.
  if (!in_time) return lost();
  if (request == Request::kMemory) {
    held_ = answer_.held;
    check_memory();
  }
  if (is_settling_ && pending_ == Request::kNone) query(Request::kHealth);
}

void DeviceWatch::settle() {
  if (!must_check_ || !is_running() || pending_ == Request::kHealth)
    return owner_.devices_settled();
  is_settling_ = true;
  if (pending_ == Request::kMemory) return;  // That answer comes first.
  query(Request::kHealth);
}

void DeviceWatch::send_findings(bool in_time) {
  if (!in_time && answer_.is_ready)
    answer_.findings.push_back(
        {"NVML", "", 0, "has not answered for " + std::to_string(kAnswerLimit.count()) + " ms"});
  Event event;
  event.mutable_device_faults()->set_generation(generation_);
  for (const DeviceFinding& finding : answer_.findings) {
    DeviceFault& fault = *event.mutable_device_faults()->add_findings();
    fault.set_device(finding.device);
    fault.set_bdf(finding.bdf);
    fault.set_at_ns(finding.at_ns);
    fault.set_text(finding.text);
    fault.set_xid(finding.xid);
  }
  if (!answer_.findings.empty()) context_.events.send(event);
  if (std::exchange(is_settling_, false)) owner_.devices_settled();
}

void DeviceWatch::sample() {
  // Not before the probe is ready: a slow driver would be taken for a hung one.
  if (is_running() && answer_.is_ready && pending_ == Request::kNone && waiting_.empty())
    query(Request::kMemory);
}

void DeviceWatch::await_memory(std::optional<std::uint32_t> rank,
                               std::vector<std::string> devices) {
  if (used_before_.empty() || pending_ == Request::kHealth) return owner_.start_allowed(rank);
  // The workers failed before the probe was due to start.
  if (!is_running() && !was_lost_) launch();
  if (!is_running()) return owner_.start_allowed(rank);
  context_.containment->spare(pid_);
  waiting_.push_back({rank, std::move(devices)});
  // Otherwise the pending answer serves this start too.
  if (waiting_.size() == 1 && pending_ == Request::kNone) query(Request::kMemory);
}

void DeviceWatch::start_all() {
  timer_.cancel();
  for (const Waiting& waiting : std::exchange(waiting_, {})) owner_.start_allowed(waiting.rank);
}

void DeviceWatch::give_up() {
  if (waiting_.empty()) return;
  const std::vector<Waiting> given_up = std::exchange(waiting_, {});
  pending_ = Request::kNone;
  close();
  for (const Waiting& waiting : given_up) owner_.start_given_up(waiting.rank);
  if (std::exchange(is_settling_, false)) owner_.devices_settled();
}

void DeviceWatch::check_memory() {
  std::vector<pid_t> live;
  for (const JobProcess& process : context_.containment->members()) live.push_back(process.pid);
  std::vector<HeldMemory> held;
  for (HeldMemory& one : answer_.held) {
    const auto before = used_before_.find(one.uuid);
    if (before == used_before_.end()) continue;
    if (bytes_of_others(one, live) > before->second + kFreeBytes) held.push_back(std::move(one));
  }
  const std::int64_t now_ns = monotonic_ns();
  std::vector<Waiting> still, free;
  for (Waiting& waiting : std::exchange(waiting_, {}))
    (keep_waiting(waiting, held, now_ns) ? still : free).push_back(std::move(waiting));
  waiting_ = std::move(still);
  if (!waiting_.empty()) query_later();
  for (const Waiting& waiting : free) owner_.start_allowed(waiting.rank);
}

bool DeviceWatch::keep_waiting(Waiting& waiting, const std::vector<HeldMemory>& held,
                               std::int64_t now_ns) {
  const HeldMemory* most = nullptr;
  std::size_t count = 0;
  for (const HeldMemory& one : held) {
    if (!is_wanted(waiting.devices, one.uuid)) continue;
    ++count;
    if (most == nullptr || one.bytes > most->bytes) most = &one;
  }
  const bool is_first = waiting.since_ns == 0;
  if (most == nullptr) {
    if (!is_first)
      send_note(
          "the memory of the devices became free after " + tenths_text(now_ns - waiting.since_ns),
          false);
    return false;
  }
  const std::string what =
      held_text(*most) +
      (count > 1 ? "; " + counted(count - 1, "other device") + " also in use" : "");
  const std::string name =
      waiting.rank ? "rank " + std::to_string(*waiting.rank) : "the next attempt";
  if (is_first) waiting.since_ns = now_ns;
  const std::chrono::nanoseconds waited(now_ns - waiting.since_ns);
  if (waited >= memory_wait()) {
    send_note(
        name + " starts although " + what + ", after a wait of " + tenths_text(waited.count()),
        true);
    return false;
  }
  if (is_first) send_note(name + " waits for the memory of the devices: " + what, false);
  return true;
}

// Queries the memory after a pause, or when the first waiting start has waited long enough.
void DeviceWatch::query_later() {
  std::chrono::nanoseconds pause = kMemoryPause;
  for (const Waiting& waiting : waiting_) {
    const std::chrono::nanoseconds waited(monotonic_ns() - waiting.since_ns);
    pause = std::min<std::chrono::nanoseconds>(
        pause, std::max<std::chrono::nanoseconds>(memory_wait() - waited, milliseconds(0)));
  }
  timer_.expires_after(pause);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !waiting_.empty() && is_running()) query(Request::kMemory);
  });
}

void DeviceWatch::send_note(const std::string& text, bool is_warning) {
  Event event;
  event.mutable_note()->set_text(text);
  event.mutable_note()->set_warning(is_warning);
  context_.events.send(event);
}

void DeviceWatch::reaped(pid_t pid) {
  if (pid != pid_ || pid == 0) return;
  pid_ = 0;
  lost();
}

// Handles the loss of the probe: callers that wait for an answer get the findings so far.
void DeviceWatch::lost() {
  was_lost_ = true;
  const Request request = std::exchange(pending_, Request::kNone);
  close();
  if (request == Request::kHealth || is_settling_) send_findings(true);
  if (!waiting_.empty()) start_all();
}

void DeviceWatch::end() {
  is_settling_ = false;
  waiting_.clear();
  pending_ = Request::kNone;
  close();
}

void DeviceWatch::close() {
  timer_.cancel();
  boost::system::error_code ignored;
  if (output_.is_open()) output_.close(ignored);
  requests_.reset();
  text_.clear();
  held_.clear();
  answer_.is_ready = false;
  if (const pid_t ended = std::exchange(pid_, 0); ended != 0) kill(ended, SIGKILL);
}

}  // namespace ivy
