// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/hello.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "agent/node/facts/host_facts.h"
#include "agent/node/facts/program_facts.h"
#include "agent/node/facts/staged_python.h"
#include "agent/node/hang/tool_run.h"
#include "agent/node/spawn/spawn.h"
#include "agent/node/supervisor/host_health.h"
#include "proto/contract/env.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"

extern char** environ;

namespace ivy {
namespace {

// The largest environments of wheels, such as torch's, take some minutes to download.
constexpr std::int64_t kSyncLimitNs = 1'800'000'000'000;
constexpr std::size_t kShownSyncBytes = 4096;

// Returns uv's path: SSH starts shells with a short PATH, so its usual locations are searched, too.
std::string find_uv(const std::string& search_path) {
  int ignored = 0;
  const std::string home = own_variable("HOME");
  for (const std::string& name : {std::string("uv"), home + "/.local/bin/uv", home + "/.cargo/bin/uv"})
    if (const auto found = find_executable(name, search_path, "/", &ignored); found.ok())
      return *found;
  return {};
}

// Runs `uv sync --frozen`, which creates or updates the environment of a project.
Result<void> sync_with_uv(const StagedEnvironment& wanted, const std::string& search_path) {
  const std::string uv = find_uv(search_path);
  if (uv.empty())
    return Error{Code::kNotFound, "uv is not in PATH, ~/.local/bin or ~/.cargo/bin",
                 "install uv there, or send the environment of this host: --stage-venv"};
  Environment environment = environment_of(environ);
  set_variable(environment, "UV_PROJECT_ENVIRONMENT", wanted.directory());
  // The tool's exit code is collected by the supervisor, so a shell reports it.
  const std::vector<std::string> command{
      "/bin/sh",  "-c",       "\"$0\" \"$@\"; echo \"exit code $?\"", uv, "sync",
      "--frozen", "--project", wanted.project()};
  const auto run = IVY_TRY(ToolRun::start(
      command, environment, static_cast<std::uint64_t>(monotonic_ns() + kSyncLimitNs)));
  while (!run->advance(static_cast<std::uint64_t>(monotonic_ns()))) usleep(20'000);
  std::string output = run->output();
  while (output.ends_with('\n')) output.pop_back();
  if (output.ends_with("exit code 0") && !run->was_late()) return {};
  if (output.size() > kShownSyncBytes) output.erase(0, output.size() - kShownSyncBytes);
  return Error{Code::kFailedPrecondition,
               uv + " sync --frozen " + (run->was_late() ? "did not finish in 30 min" : "failed") +
                   ":\n" + output,
               "run it there: cd " + wanted.project() + " && uv sync --frozen"};
}

// Prepares the environment of --stage-venv. Returns Hello with its interpreter and PATH.
Hello with_environment(Hello hello, const BlockingPool::Label& label, HostFacts& facts) {
  const StagedEnvironment& wanted = hello.environment();
  if (hello.search_path().empty()) {
    const std::string own = own_variable("PATH");
    hello.set_search_path(own.empty() ? std::string(kDefaultSearchPath) : own);
  }
  Result<void> prepared;
  StagedEnvironment resolved = wanted;
  if (!wanted.project().empty()) {
    label.set("uv sync --frozen in " + wanted.project());
    prepared = sync_with_uv(wanted, hello.search_path());
  }
  // A tree of a job links to the environment, which must be named by the same path in every job.
  for (std::string* const path : {resolved.mutable_directory(), resolved.mutable_python()}) {
    std::array<char, PATH_MAX> physical{};
    if (realpath(path->c_str(), physical.data()) != nullptr) *path = physical.data();
  }
  if (wanted.project().empty()) {
    label.set("the file system of " + resolved.directory());
    prepared = prepare_environment(resolved, {hello.search_path(), own_variable("HOME")});
  }
  if (!prepared.ok()) {
    facts.set_environment_error(prepared.error().message);
    facts.set_environment_fix(prepared.error().fix);
    return hello;
  }
  *facts.mutable_environment() = resolved;
  const std::string bin = resolved.directory() + "/bin";
  hello.clear_interpreters();
  hello.add_interpreters(bin + "/python");
  hello.set_search_path(bin + ":" + hello.search_path());
  return hello;
}

// Covers the time for which NFS clients cache a changing folder (acdirmin is 30 s, but reading the
// folder queries the server). A user who mistyped a name has to wait that long, too.
constexpr std::chrono::milliseconds kRetryTime{6'000};

void add_program(const Hello& hello, TransportKind transport, const BlockingPool::Label& label,
                 HostFacts& facts) {
  ProgramRequest request;
  // A file that is missing on the launcher's own host was never saved.
  if (transport != TransportKind::kLocal) request.retry_time = kRetryTime;
  request.on_wait = [&label](const std::string& path) {
    label.set(path + " to appear on its network file system");
  };
  request.program = hello.program();
  request.form = hello.program_form();
  request.interpreters.assign(hello.interpreters().begin(), hello.interpreters().end());
  request.search_path = hello.search_path();
  request.working_directory = hello.working_directory();
  const ProgramFacts program = check_program(request);
  facts.set_working_directory_error(program.working_directory_error);
  facts.set_program_path(program.path);
  facts.set_program_error(program.error);
  facts.set_program_errno(program.error_number);
  facts.set_program_library(program.mpi_libraries);
  facts.set_program_sha256(program.sha256);
  facts.set_program_first_line(program.shebang);
  facts.set_program_is_script(program.is_script);
  facts.set_interpreter(program.interpreter);
  facts.set_interpreter_version(program.interpreter_version);
  facts.set_interpreter_error(program.interpreter_error);
  facts.set_search_path(program.search_path);
}

// Returns false if no port could be reserved; `facts` then contains the reason.
bool keep_port(std::uint32_t low, std::uint32_t high, std::optional<ReservedPort>& port,
               HostFacts& facts) {
  if (port) return true;
  Result<ReservedPort> reserved = ReservedPort::reserve(low, high);
  if (!reserved.ok()) {
    facts.set_reserved_port_error(reserved.error().message);
    return false;
  }
  port.emplace(std::move(reserved).value());
  return true;
}

void add_ports(const Hello& hello, JobPorts& ports, HostFacts& facts) {
  if (!keep_port(hello.port_low(), hello.port_high(), ports.master, facts)) return;
  // A single requested port is the master's; the other ports may have any number.
  const bool is_single = hello.port_low() == hello.port_high();
  const std::uint32_t low = is_single ? 0 : hello.port_low();
  const std::uint32_t high = is_single ? 0 : hello.port_high();
  if (!keep_port(low, high, ports.coordinator, facts)) return;
  if (!keep_port(low, high, ports.store, facts)) return;
  facts.set_reserved_port(ports.master->port());
  facts.set_coordinator_port(ports.coordinator->port());
  facts.set_store_port(ports.store->port());
}

// More than any host has cores; each costs a descriptor.
constexpr std::size_t kMaxWorkerPorts = 2048;

void add_worker_ports(const Hello& hello, JobPorts& ports, HostFacts& facts) {
  const PortWish& wish = hello.worker_ports();
  const std::size_t own = std::max<std::size_t>({1, facts.cores(), facts.accelerators()});
  const std::size_t workers = wish.workers() > 0 ? wish.workers() : own;
  const std::size_t wanted =
      std::min<std::size_t>(kMaxWorkerPorts, workers * wish.each() + wish.more());
  const bool is_single = hello.port_low() == hello.port_high();
  while (ports.workers.size() < wanted) {
    std::optional<ReservedPort> port;
    if (!keep_port(is_single ? 0 : hello.port_low(), is_single ? 0 : hello.port_high(), port,
                   facts))
      break;
    ports.workers.push_back(std::move(*port));
  }
  for (const ReservedPort& port : ports.workers) facts.add_worker_ports(port.port());
}

}  // namespace

Result<void> write_token_file(const std::string& path, const std::string& token) {
  const Descriptor fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400));
  if (!fd && errno == EEXIST) return {};
  if (!fd) return errno_error(Code::kUnavailable, "token file " + path, errno);
  if (write_all(fd.get(), token)) return {};
  const Error error = errno_error(Code::kResourceExhausted, "token file " + path, errno);
  unlink(path.c_str());
  return error;
}

HostFacts inspect_host(const Hello& hello, TransportKind transport,
                       const BlockingPool::Label& label) {
  HostFacts facts = collect_host_facts();
  add_program(hello.has_environment() ? with_environment(hello, label, facts) : hello, transport,
              label, facts);
  if (hello.examine()) examine_host(hello, facts);
  return facts;
}

HelloOk begin_answer(const Hello& hello, const Containment& containment,
                     const JobDirectory& directory, JobPorts& ports) {
  HelloOk answer;
  HostFacts& facts = *answer.mutable_facts();
  if (hello.reserve_port()) add_ports(hello, ports, facts);
  facts.set_containment(containment.describe());
  facts.set_job_directory(directory.path);
  facts.set_working_directory(hello.working_directory());
  return answer;
}

void add_facts(const Hello& hello, HostFacts found, JobPorts& ports, HelloOk& answer) {
  HostFacts& facts = *answer.mutable_facts();
  facts.MergeFrom(found);
  if (hello.has_worker_ports()) add_worker_ports(hello, ports, facts);
}

}  // namespace ivy
