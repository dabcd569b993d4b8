// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/fork_request.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "agent/node/spawn/spawn_child.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// waitid()'s P_PIDFD, which glibc 2.36 declares only with newer kernel headers.
constexpr auto kOfPidfd = static_cast<idtype_t>(3);
// A server with large libraries forks a worker in 5 to 10 ms; this allows for a crowded machine.
constexpr std::uint64_t kForkTimeoutNs = 10'000'000'000;
constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::chrono::milliseconds kAdoptionPoll{1};
// A step number of the records, in addition to those of ChildStep: the worker is ready.
constexpr std::int32_t kCreated = -1;

struct ForkRecord {
  std::int32_t index;  // -1 if the process between server and workers has failed.
  std::int32_t pid;
  std::int32_t step;
  std::int32_t error;
};

constexpr std::array<const char*, static_cast<std::size_t>(ChildStep::kCount)> kSteps = {
    "setpgid", "cgroup", "bind", "stdin", "stdout", "stderr", "chdir", "exec"};

void add_field(std::string& text, std::string_view field) {
  text += field;
  text += '\0';
}

Error fork_failure(const std::string& what, int error) {
  return errno_error(Code::kUnavailable, what, error);
}

// Sends the descriptors in one message.
Result<void> send_descriptors(int socket, const std::vector<int>& descriptors) {
  char word = 'f';
  iovec data{&word, 1};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return fork_failure("send a request to it", errno);
  return {};
}

// Reads records until all of their writers have closed the pipe.
Result<std::vector<ForkRecord>> read_records(int pipe, std::uint64_t until_ns) {
  std::vector<ForkRecord> records;
  for (;;) {
    const std::uint64_t now_ns = monotonic_ns();
    pollfd waited{pipe, POLLIN, 0};
    const int ready =
        now_ns >= until_ns
            ? 0
            : poll(&waited, 1, static_cast<int>((until_ns - now_ns) / kMillisecondNs) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Error{Code::kDeadlineExceeded, "it has not forked them within 10 s"};
    ForkRecord record{};
    const ssize_t count = read(pipe, &record, sizeof record);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) return records;
    if (count != sizeof record) return Error{Code::kDataLoss, "its answer is incomplete"};
    records.push_back(record);
  }
}

// Waits until the process is a child of this one, as it is when the process between has exited.
bool wait_until_adopted(int pidfd, std::uint64_t until_ns) {
  for (;;) {
    siginfo_t info{};
    const int flags = WEXITED | WNOHANG | WNOWAIT;
    if (waitid(kOfPidfd, static_cast<id_t>(pidfd), &info, flags) == 0) return true;
    if (errno != ECHILD && errno != EINTR) return false;
    if (static_cast<std::uint64_t>(monotonic_ns()) >= until_ns) return false;
    std::this_thread::sleep_for(kAdoptionPoll);
  }
}

void close_processes(std::span<ForkedWorker> workers) {
  for (ForkedWorker& worker : workers) {
    const Descriptor closed(std::exchange(worker.result, {}).process.pidfd);
  }
}

Result<void> take_records(const std::vector<ForkRecord>& records, std::uint64_t until_ns,
                          std::span<ForkedWorker> workers) {
  for (const ForkRecord& record : records) {
    if (record.index < 0) return fork_failure("join the cgroup", record.error);
    if (static_cast<std::size_t>(record.index) >= workers.size())
      return Error{Code::kDataLoss, "its answer is invalid"};
    SpawnResult& result = workers[static_cast<std::size_t>(record.index)].result;
    if (record.step == kCreated) {
      result.process = {record.pid, open_pidfd(record.pid)};
      if (result.process.pidfd < 0) return fork_failure("watch a worker", errno);
    } else {
      const auto step = static_cast<std::size_t>(record.step);
      result.failure = {step < kSteps.size() ? kSteps[step] : "start", {}, record.error};
    }
  }
  for (const ForkedWorker& worker : workers) {
    if (!worker.result.ok() && worker.result.failure.step.empty())
      return Error{Code::kUnavailable, "it has not forked all of them"};
    if (worker.result.ok() && !wait_until_adopted(worker.result.process.pidfd, until_ns))
      return Error{Code::kUnavailable, "a forked worker is not a child of the supervisor"};
  }
  return {};
}

}  // namespace

std::string fork_request_text(std::span<const ForkedWorker> workers, pid_t supervisor) {
  std::string text;
  const SpawnRequest& first = *workers.front().request;
  add_field(text, first.own_session ? "1" : "0");
  add_field(text, std::to_string(supervisor));
  add_field(text, first.cgroup_fd >= 0 ? "1" : "0");
  add_field(text, std::to_string(workers.size()));
  for (const ForkedWorker& worker : workers) {
    const SpawnRequest& request = *worker.request;
    std::string cores;
    for (const int core : request.cores) cores += (cores.empty() ? "" : " ") + std::to_string(core);
    add_field(text, cores);
    add_field(text, std::to_string(request.memory_node.value_or(-1)));
    Environment environment = request.environment;
    if (request.shared != nullptr)
      for (const EnvVariable& variable : request.shared->variables)
        if (find_variable(request.environment, variable.name) == nullptr)
          environment.push_back(variable);
    add_field(text, std::to_string(environment.size()));
    for (const EnvVariable& variable : environment)
      add_field(text, variable.name + "=" + variable.value);
  }
  return text;
}

Result<void> fork_workers(int server, std::span<ForkedWorker> workers,
                          const std::function<bool()>& is_cancelled) {
  const std::uint64_t until_ns = static_cast<std::uint64_t>(monotonic_ns()) + kForkTimeoutNs;
  const Descriptor text(memfd_create("ivy-fork", MFD_CLOEXEC));
  DescriptorPair report = make_pipe();
  DescriptorPair gate = make_pipe();
  const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!text || !report || !gate || !null) return fork_failure("open descriptors", errno);
  if (!write_all(text.get(), fork_request_text(workers, getpid())))
    return fork_failure("write the request", errno);
  std::vector<int> descriptors = {text.get(), report.second.get(), gate.first.get()};
  Descriptor cgroup;
  if (const int directory = workers.front().request->cgroup_fd; directory >= 0) {
    cgroup.reset(openat(directory, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    if (!cgroup) return fork_failure("open cgroup.procs", errno);
    descriptors.push_back(cgroup.get());
  }
  for (const ForkedWorker& worker : workers)
    for (const int fd :
         {worker.request->stdin_fd, worker.request->stdout_fd, worker.request->stderr_fd})
      descriptors.push_back(fd >= 0 ? fd : null.get());
  IVY_CHECK(send_descriptors(server, descriptors));
  report.second.reset();
  gate.first.reset();
  const auto records = read_records(report.first.get(), until_ns);
  Result<void> taken = records.ok() ? take_records(*records, until_ns, workers) : records.error();
  // A stop may have killed some of them already.
  if (is_cancelled()) taken = Error{Code::kCancelled, "the start was cancelled"};
  // If an error closes the gate, the workers exit.
  if (taken.ok() && !write_all(gate.second.get(), std::string(workers.size(), 'g')))
    taken = fork_failure("release the workers", errno);
  if (!taken.ok()) close_processes(workers);
  return taken;
}

}  // namespace ivy
