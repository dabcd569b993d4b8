// SPDX-License-Identifier: Apache-2.0
#include "agent/node/spawn/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "agent/node/spawn/clone_process.h"
#include "agent/node/spawn/spawn_child.h"
#include "proto/contract/core_limit.h"
#include "proto/os/descriptor.h"
#include "proto/os/old_kernels.h"
#include "proto/os/process.h"

namespace ivy {

// Memory that a child uses until it executes its program; kept until finish_spawn().
struct SpawnMemory {
  explicit SpawnMemory(const SpawnRequest& request);

  CloneStack stack;
  ChildReport report{ChildStep::kCount, 0};  // Unchanged if the program was executed.
  std::string executable;
  std::string working_directory;
  std::string cores;  // In the usual text form.
  std::vector<std::string> arguments;
  std::vector<std::string> block;
  std::shared_ptr<const SharedEnvironment> shared;
  std::vector<char*> argument_pointers;
  std::vector<char*> block_pointers;
  std::vector<unsigned long> processors;
  std::vector<unsigned long> memory_nodes;
  ChildPlan plan;
};

namespace {

constexpr std::array<const char*, static_cast<std::size_t>(ChildStep::kCount)> kStepNames = {
    "setpgid", "cgroup", "bind", "stdin", "stdout", "stderr", "chdir", "exec"};

// Returns a bit set in the kernel's format for processors and memory nodes.
std::vector<unsigned long> bits_of(const CoreList& numbers) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> words;
  for (const int number : numbers) {
    const auto bit = static_cast<std::size_t>(number);
    if (words.size() <= bit / kBits) words.resize(bit / kBits + 1);
    words[bit / kBits] |= 1ul << (bit % kBits);
  }
  return words;
}

std::vector<std::string> environment_block(const Environment& environment) {
  std::vector<std::string> block;
  block.reserve(environment.size());
  for (const EnvVariable& variable : environment) {
    block.push_back(variable.name + "=" + variable.value);
  }
  return block;
}

// Returns the process's own variables, followed by the shared ones that they do not override.
std::vector<char*> environment_words(const SpawnRequest& request,
                                     const std::vector<std::string>& block) {
  std::vector<char*> pointers = exec_array(block);
  if (request.shared == nullptr) return pointers;
  pointers.pop_back();
  const Environment& shared = request.shared->variables;
  for (std::size_t i = 0; i < shared.size(); ++i)
    if (find_variable(request.environment, shared[i].name) == nullptr)
      pointers.push_back(const_cast<char*>(request.shared->words[i].c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

PendingSpawn failed(std::string step, int error) {
  PendingSpawn pending;
  pending.failure = SpawnFailure{std::move(step), {}, error};
  return pending;
}

std::string path_of_step(ChildStep step, const PendingSpawn& pending) {
  if (step == ChildStep::kChdir) return pending.memory->working_directory;
  if (step == ChildStep::kExec) return pending.memory->executable;
  if (step == ChildStep::kCgroup) return "cgroup.procs";
  if (step == ChildStep::kBind) return "processors " + pending.memory->cores;
  return {};
}

// Creates the pipe above descriptors 0 to 2, which may be closed in this process, so that the
// report pipe survives the dup2() onto them.
DescriptorPair make_report_pipe() {
  const DescriptorPair low = make_pipe();
  if (!low) return {};
  DescriptorPair high{Descriptor(fcntl(low.first.get(), F_DUPFD_CLOEXEC, 3)),
                      Descriptor(fcntl(low.second.get(), F_DUPFD_CLOEXEC, 3))};
  return high.first && high.second ? std::move(high) : DescriptorPair{};
}

// Returns the child's report; waits until the child has exited.
SpawnFailure failure_of(const ChildReport& report, const PendingSpawn& pending) {
  while (waitpid(pending.process.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  const Descriptor closed(pending.process.pidfd);
  return SpawnFailure{kStepNames[static_cast<std::size_t>(report.step)],
                      path_of_step(report.step, pending), report.error};
}

// Returns false if this method is not available here; no process was created then.
bool begin_in_shared_memory(PendingSpawn& pending) {
  SpawnMemory& memory = *pending.memory;
  memory.plan.shared_report = &memory.report;
  const auto child_main = [](void* plan) {
    become_worker(*static_cast<const ChildPlan*>(plan), false);
  };
  const ClonedProcess child =
      memory.stack.clone_process(memory.plan.cgroup_fd, SIGCHLD, child_main, &memory.plan);
  if (child.pid < 0 && !is_final(child.error)) return false;
  if (child.pid < 0) {
    pending = failed("clone", child.error);
    return true;
  }
  pending.process = SpawnedProcess{child.pid, child.pidfd};
  return true;
}

// The child gets a copy of our memory and reports through a pipe, which finish_spawn() reads.
void begin_with_pipe(PendingSpawn& pending) {
  ChildPlan& plan = pending.memory->plan;
  DescriptorPair report = make_report_pipe();
  if (!report) {
    pending = failed("pipe", errno);
    return;
  }
  plan.report_fd = report.second.get();
  const ClonedProcess child = clone_process(plan.cgroup_fd);
  if (child.pid == 0) become_worker(plan, child.must_join_cgroup);
  if (child.pid < 0) {
    pending = failed("clone", child.error);
    return;
  }
  pending.process = SpawnedProcess{child.pid, child.pidfd};
  pending.report_fd = report.first.release();
}

// Waits for the report. Returns true if the child has sent one.
bool read_report(PendingSpawn& pending, ChildReport& report) {
  if (pending.report_fd < 0) {
    pending.memory->stack.wait();
    report = pending.memory->report;
    return report.step != ChildStep::kCount;
  }
  const Descriptor reader(std::exchange(pending.report_fd, -1));
  ssize_t count = 0;
  do {
    count = read(reader.get(), &report, sizeof report);
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(sizeof report);
}

}  // namespace

SharedEnvironment::SharedEnvironment(Environment of_all)
    : variables(std::move(of_all)), words(environment_block(variables)) {}

SpawnMemory::SpawnMemory(const SpawnRequest& request)
    : executable(request.executable),
      working_directory(request.working_directory),
      cores(core_list_text(request.cores)),
      arguments(request.arguments),
      block(environment_block(request.environment)),
      shared(request.shared),
      argument_pointers(exec_array(arguments)),
      block_pointers(environment_words(request, block)),
      processors(bits_of(request.cores)),
      memory_nodes(bits_of(request.memory_node ? CoreList{*request.memory_node} : CoreList{})),
      plan{.executable = executable.c_str(),
           .arguments = argument_pointers.data(),
           .environment = block_pointers.data(),
           .working_directory = working_directory.c_str(),
           .standard_fds = {request.stdin_fd, request.stdout_fd, request.stderr_fd},
           .own_session = request.own_session,
           .cgroup_fd = request.cgroup_fd,
           .limits = request.limits,
           .core_limit = users_core_limit()} {
  if (processors.empty()) return;
  plan.processors = processors.data();
  plan.processors_bytes = static_cast<long>(processors.size() * sizeof(unsigned long));
  if (memory_nodes.empty()) return;
  plan.memory_nodes = memory_nodes.data();
  // The kernel uses one bit less than this number specifies.
  plan.memory_node_bits = static_cast<long>(memory_nodes.size() * 8 * sizeof(unsigned long)) + 1;
}

PendingSpawn begin_spawn(const SpawnRequest& request) {
  PendingSpawn pending;
  pending.memory = std::make_shared<SpawnMemory>(request);
  const AllSignalsBlocked blocked;
  if (!begin_in_shared_memory(pending)) begin_with_pipe(pending);
  return pending;
}

void await_spawn(PendingSpawn& pending) {
  if (pending.process.pid < 0 || std::exchange(pending.is_awaited, true)) return;
  ChildReport report{};
  pending.has_failed = read_report(pending, report);
  if (pending.has_failed) pending.memory->report = report;
}

SpawnResult finish_spawn(PendingSpawn pending) {
  await_spawn(pending);
  SpawnResult result;
  result.failure = pending.failure;
  if (pending.process.pid < 0) return result;
  if (pending.has_failed)
    result.failure = failure_of(pending.memory->report, pending);
  else
    result.process = pending.process;
  return result;
}

SpawnResult spawn(const SpawnRequest& request) { return finish_spawn(begin_spawn(request)); }

namespace {

// Returns 0, or the errno that explains why this file cannot be executed: ENOENT, EACCES, EISDIR...
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return effective_access(path, X_OK);
}

std::string joined(const std::string& directory, const std::string& name) {
  if (name.starts_with('/') || directory.empty()) return name;
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

Error not_executable(const std::string& what, int error) {
  return errno_error(
      error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kPermissionDenied, what, error);
}

}  // namespace

Result<std::string> find_executable(const std::string& name, const std::string& search_path,
                                    const std::string& working_directory, int* errno_value) {
  int error = ENOENT;
  std::string found;
  if (name.find('/') != std::string::npos) {
    found = joined(working_directory, name);
    error = why_not_executable(found);
  } else if (!name.empty()) {
    std::size_t begin = 0;
    while (begin <= search_path.size() && error != 0) {
      const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
      // An empty element of PATH means the working directory.
      const std::string part = search_path.substr(begin, end - begin);
      const std::string candidate = joined(joined(working_directory, part), name);
      const int why = why_not_executable(candidate);
      if (why == 0) found = candidate;
      // Prefer the error of a file that exists but cannot be run to ENOENT.
      if (why == 0 || (why != ENOENT && why != ENOTDIR && error == ENOENT)) error = why;
      begin = end + 1;
    }
  }
  if (errno_value != nullptr) *errno_value = error;
  if (error != 0) return not_executable(name, error);
  return found;
}

}  // namespace ivy
