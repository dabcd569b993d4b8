// SPDX-License-Identifier: Apache-2.0
// HostContainerRun::run() is the sequence; the functions before it are its steps.
#include "agent/node/container/container_role.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "agent/node/container/container_enter.h"
#include "agent/node/container/container_runtime.h"
#include "agent/node/facts/own_package.h"
#include "agent/node/facts/program_facts.h"
#include "agent/node/spawn/job_directory.h"
#include "agent/node/spawn/process_tree.h"
#include "agent/node/spawn/spawn.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/process.h"
#include "proto/wire/job.pb.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The image's variables, and the messages of a runtime of which the end is kept.
constexpr std::size_t kMaxVariableBytes = 1u << 20;
constexpr std::size_t kKeptOutputBytes = 4096;
constexpr std::size_t kMaxOrderBytes = 1u << 20;
// A runtime that does not react to the end of its container is killed.
constexpr seconds kEndTimeout{10};
// `podman rm` takes a fraction of a second.
constexpr seconds kRemoveTimeout{20};
constexpr milliseconds kNoDeadline = milliseconds::max();
constexpr useconds_t kReapPauseMicroseconds = 1000;  // See open_pidfd().
// Processes in the background, such as podman's for its user namespace, get this time to exit.
constexpr int kDescendantPauses = 300;
constexpr useconds_t kDescendantPauseMicroseconds = 10'000;

// A command of the runtime.
struct Child {
  pid_t pid = -1;
  Descriptor pidfd;
  Descriptor output;  // Its error messages.
  std::string said;   // Their end.
  int status = 0;     // Of waitpid(), once it has exited.
};

bool is_success(const Child& child) {
  return WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
}

// Returns the last line that a runtime has printed, which is usually the reason.
std::string last_line_of(std::string_view text) {
  std::string_view last;
  while (!text.empty())
    if (const std::string_view line = take_part(text, '\n');
        line.find_first_not_of(" \r\t") != line.npos)
      last = line;
  return std::string(last.substr(0, 400));
}

std::string in_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return text;
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

bool path_exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

ContainerMount mount_of(const std::string& path, bool read_only) {
  ContainerMount mount;
  mount.set_source(path);
  mount.set_target(path);
  mount.set_read_only(read_only);
  return mount;
}

// Returns this process's children that have not exited.
std::vector<ProcessStat> own_children() {
  std::vector<ProcessStat> children = read_all_processes();
  std::erase_if(children, [](const ProcessStat& process) {
    return process.parent != getpid() || has_ended(process);
  });
  return children;
}

// Waits for what the runtime has left in the background, and kills what does not exit. Podman keeps
// `catatonit` for the user's namespace and starts another one when it needs it.
void end_descendants() {
  for (int i = 0; i < kDescendantPauses; ++i) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<ProcessStat> children = own_children();
    const bool is_waiting = std::any_of(children.begin(), children.end(), [](const auto& child) {
      return child.name != "catatonit";
    });
    if (!is_waiting) break;
    usleep(kDescendantPauseMicroseconds);
  }
  for (const ProcessStat& child : own_children())
    signal_process(child.pid, child.start_time, SIGKILL);
}

class HostContainerRun {
 public:
  explicit HostContainerRun(std::string directory) : directory_(std::move(directory)) {}
  int run();

 private:
  enum class Happened { kExited, kConnected, kCancelled, kLate };

  Result<void> read_order();
  Result<void> choose_runtime();
  Result<void> check_mounts() const;
  ContainerSetting setting() const;
  std::vector<ContainerMount> own_mounts() const;
  bool hides_gpus() const;
  Result<void> check_gpus(const ContainerSetting& setting) const;

  Result<Child> start(const CommandWords& words) const;
  // Waits until the command has exited, or the process in the container connects, if awaited.
  Happened wait(Child& child, milliseconds limit, bool awaits_connection = false);
  void end(Child& child);
  // Runs one command to its end. `step`: text for the user.
  Result<void> carry_out(const CommandWords& words, const std::string& step);
  Error failure(const CommandWords& words, const Child& child) const;

  Result<void> get_image();
  Result<void> start_container();
  Result<void> take_connection();
  Result<HostFacts> inspect_program() const;
  Result<void> open();
  void await_end();
  void remove();

  const std::string directory_;
  ContainerOrder order_;
  std::string runtime_;
  ContainerCommands commands_;
  Descriptor listening_;
  Child container_;        // The runtime's run command.
  Descriptor connection_;  // To the process in the container.
  ContainerStarted started_;
  bool is_cancelled_ = false;
  bool is_created_ = false;  // There may be something to remove.
};

Result<void> HostContainerRun::read_order() {
  const std::string file = container_order_file(directory_);
  const std::optional<std::string> text = read_file(file, kMaxOrderBytes);
  if (text && order_.ParseFromString(*text)) return {};
  return Error{Code::kInternal, "cannot read " + file};
}

bool is_installed(const std::string& program) {
  const std::string path = own_variable("PATH");
  return find_executable(program, path.empty() ? kDefaultSearchPath : path, "/", nullptr).ok();
}

Result<void> HostContainerRun::choose_runtime() {
  const Container& wanted = order_.hello().container();
  std::vector<std::string> candidates = container_runtimes();
  if (const std::string only = runtime_of_image(wanted.image()); !only.empty()) candidates = {only};
  if (!wanted.runtime().empty()) candidates = {wanted.runtime()};
  for (const std::string& name : candidates) {
    if (!is_installed(name)) continue;
    runtime_ = name;
    return {};
  }
  const bool is_one = candidates.size() == 1;
  return Error{Code::kNotFound,
               (is_one ? candidates.front() + " is not in PATH"
                       : "none of " + joined(candidates, ", ") + " is in PATH") +
                   " (" + own_variable("PATH") + ")",
               is_one ? "install it there, or choose another one: --container-runtime NAME"
                      : "install one of them there, such as podman: sudo apt install podman"};
}

// Docker would create a missing directory, and own it as root.
Result<void> HostContainerRun::check_mounts() const {
  for (const ContainerMount& mount : order_.hello().container().mounts())
    if (!path_exists(mount.source()))
      return errno_error(Code::kNotFound, "--container-mount " + mount.source(), errno);
  return {};
}

// A user who hides the GPUs (-x CUDA_VISIBLE_DEVICES=), or gives the runtime's own arguments for
// them, does not need ours.
bool HostContainerRun::hides_gpus() const {
  const Hello& hello = order_.hello();
  const bool has_empty_mask =
      std::any_of(hello.masks().begin(), hello.masks().end(),
                  [](const Variable& mask) { return mask.value().empty(); });
  const auto& words = hello.container().arguments();
  return has_empty_mask || std::any_of(words.begin(), words.end(), [](const std::string& word) {
           return word.starts_with("--gpus") || word == "--nv" || word == "--rocm" ||
                  word.find("nvidia.com/gpu") != std::string::npos;
         });
}

std::vector<ContainerMount> HostContainerRun::own_mounts() const {
  const std::string& programs = order_.program_directory();
  const std::string& working = order_.hello().working_directory();
  std::vector<ContainerMount> mounts = {mount_of(directory_, false)};
  // One that exists only in the image is looked up there.
  std::error_code ignored;
  if (working != "/" && std::filesystem::is_directory(working, ignored))
    mounts.push_back(mount_of(working, false));
  const std::string package = own_package(programs);
  if (package == programs + "/ivycomm.zip") {
    mounts.push_back(mount_of(programs, true));
    return mounts;
  }
  // An installation: its bin may be the system's, so only our own files are mounted.
  mounts.push_back(mount_of(programs + "/ivy-node", true));
  if (package.empty()) return mounts;
  mounts.push_back(mount_of(package.substr(0, package.rfind('/')), true));
  // In a build tree the package is a link to the sources.
  const std::string linked = std::filesystem::canonical(package + "/ivycomm", ignored).string();
  if (!linked.empty() && linked != package + "/ivycomm") mounts.push_back(mount_of(linked, true));
  return mounts;
}

ContainerSetting HostContainerRun::setting() const {
  ContainerSetting setting;
  setting.wanted = order_.hello().container();
  const std::string& image = setting.wanted.image();
  const bool is_relative = image.starts_with("./") || image.starts_with("../") ||
                           (!runtime_of_image(image).empty() && !image.starts_with('/') &&
                            image.find("://") == std::string::npos);
  if (is_relative) setting.wanted.set_image(order_.hello().working_directory() + "/" + image);
  setting.name = order_.name();
  setting.node = order_.program_directory() + "/ivy-node";
  setting.socket = directory_ + "/container.sock";
  setting.image_file = directory_ + "/image.sqsh";
  setting.mounts = own_mounts();
  setting.user = geteuid();
  setting.group = getegid();
  const bool shows_gpus = !hides_gpus();
  setting.has_nvidia = shows_gpus && path_exists("/dev/nvidiactl");
  setting.has_amd = shows_gpus && path_exists("/dev/kfd");
  setting.has_infiniband = path_exists("/dev/infiniband");
  return setting;
}

// Podman's own message does not name the missing description.
Result<void> HostContainerRun::check_gpus(const ContainerSetting& setting) const {
  if (runtime_ != "podman" || !setting.has_nvidia) return {};
  for (const char* folder : {"/etc/cdi", "/var/run/cdi"})
    for (const std::string& name : names_in(folder))
      if (name.find("nvidia") != std::string::npos) return {};
  return Error{
      Code::kFailedPrecondition,
      "podman cannot give NVIDIA GPUs to containers: there is no CDI description of them in "
      "/etc/cdi or /var/run/cdi",
      container_advice("podman", "cdi device") + "\nor run without GPUs: -x CUDA_VISIBLE_DEVICES="};
}

Result<Child> HostContainerRun::start(const CommandWords& words) const {
  const std::string path = own_variable("PATH");
  const Result<std::string> program =
      find_executable(words.front(), path.empty() ? kDefaultSearchPath : path, "/", nullptr);
  if (!program.ok()) return program.error();
  DescriptorPair errors = make_pipe();
  if (!errors) return errno_error(Code::kResourceExhausted, "pipe", errno);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, errors.second.get(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigfillset(&defaults);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  // A system tool must not load libraries that the user has chosen for the job.
  std::vector<std::string> variables;
  for (const EnvVariable& variable : environment_of(environ))
    if (variable.name != "LD_LIBRARY_PATH" && variable.name != "LD_PRELOAD")
      variables.push_back(variable.name + "=" + variable.value);
  Child child;
  const std::vector<char*> arguments = exec_array(words);
  const std::vector<char*> environment = exec_array(variables);
  const int error = posix_spawn(&child.pid, program->c_str(), &files, &attributes, arguments.data(),
                                environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) return errno_error(Code::kUnavailable, "start " + words.front(), error);
  child.pidfd.reset(open_pidfd(child.pid));
  child.output = std::move(errors.first);
  fcntl(child.output.get(), F_SETFL, O_NONBLOCK);
  return child;
}

// Returns false if the other end is closed.
bool keep_output(Child& child) {
  std::array<char, 4096> bytes{};
  ssize_t count = 0;
  while ((count = read(child.output.get(), bytes.data(), bytes.size())) > 0) {
    child.said.append(bytes.data(), static_cast<std::size_t>(count));
    if (child.said.size() > kKeptOutputBytes)
      child.said.erase(0, child.said.size() - kKeptOutputBytes);
  }
  return count < 0 && (errno == EAGAIN || errno == EINTR);
}

HostContainerRun::Happened HostContainerRun::wait(Child& child, milliseconds limit,
                                                  bool awaits_connection) {
  const std::uint64_t from_ns = monotonic_ns();
  for (;;) {
    int timeout = -1;
    if (limit != kNoDeadline) {
      const auto waited = milliseconds((monotonic_ns() - from_ns) / 1'000'000);
      if (waited >= limit) return Happened::kLate;
      timeout = static_cast<int>((limit - waited).count());
    }
    pollfd waited[] = {{is_cancelled_ ? -1 : STDIN_FILENO, POLLIN, 0},
                       {child.pidfd.get(), POLLIN, 0},
                       {child.output.get(), POLLIN, 0},
                       {awaits_connection ? listening_.get() : -1, POLLIN, 0}};
    if (poll(waited, std::size(waited), timeout) < 0 && errno != EINTR) return Happened::kLate;
    if (waited[2].revents != 0 && !keep_output(child)) child.output.reset();
    if (waited[0].revents != 0) {
      is_cancelled_ = true;
      return Happened::kCancelled;
    }
    if (waited[3].revents != 0) return Happened::kConnected;
    if (waited[1].revents == 0) continue;
    if (waitpid(child.pid, &child.status, WNOHANG) != child.pid) {
      usleep(kReapPauseMicroseconds);
      continue;
    }
    if (child.output) keep_output(child);
    child.pid = -1;
    return Happened::kExited;
  }
}

void HostContainerRun::end(Child& child) {
  if (child.pid <= 0) return;
  kill(child.pid, SIGTERM);
  if (wait(child, seconds(2)) == Happened::kExited) return;
  kill(child.pid, SIGKILL);
  waitpid(child.pid, &child.status, 0);
  child.pid = -1;
}

Error HostContainerRun::failure(const CommandWords& words, const Child& child) const {
  std::string reason = last_line_of(child.said);
  if (reason.empty() && WIFEXITED(child.status))
    reason = "it exited with code " + std::to_string(WEXITSTATUS(child.status));
  else if (reason.empty())
    reason = std::string("it was killed by ") + strsignal(WTERMSIG(child.status));
  const std::string advice = container_advice(runtime_, child.said);
  const bool has_subcommand = words.size() > 1 && !words[1].starts_with('-');
  return Error{Code::kUnavailable,
               words[0] + (has_subcommand ? " " + words[1] : "") + ": " + reason,
               advice.empty() ? "run this command there: " + quoted_arguments(words) : advice};
}

Result<void> HostContainerRun::carry_out(const CommandWords& words, const std::string& step) {
  if (words.empty()) return {};
  say("step\t" + in_one_line(step));
  Child child = IVY_TRY(start(words));
  if (wait(child, kNoDeadline) != Happened::kExited) {
    end(child);
    return Error{Code::kCancelled, "cancelled"};
  }
  if (is_success(child)) return {};
  return failure(words, child);
}

Result<void> HostContainerRun::get_image() {
  const std::string& image = order_.hello().container().image();
  if (!commands_.has_image.empty()) {
    say("step\t" + runtime_ + " to find its image");
    Child check = IVY_TRY(start(commands_.has_image));
    if (wait(check, kNoDeadline) != Happened::kExited) {
      end(check);
      return Error{Code::kCancelled, "cancelled"};
    }
    if (is_success(check)) return {};
    // Without a daemon, permission or namespaces the pull would fail with a less clear message.
    if (!container_advice(runtime_, check.said).empty() &&
        lower_case(check.said).find("no such image") == std::string::npos)
      return failure(commands_.has_image, check);
  }
  return carry_out(commands_.get_image, runtime_ + " to pull " + image);
}

// Accepts the connection of the process in the container, and reads the variables that it has.
Result<void> HostContainerRun::take_connection() {
  connection_.reset(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer{};
  socklen_t size = sizeof peer;
  if (!connection_ || getsockopt(connection_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      peer.pid <= 1)
    return errno_error(Code::kInternal, "accept the container's connection", errno);
  const std::optional<std::string> variables = read_from(connection_.get(), kMaxVariableBytes);
  if (!variables) return errno_error(Code::kInternal, "read the image's variables", errno);
  started_.set_pid(peer.pid);
  started_.set_runtime(runtime_);
  for (const std::string_view variable : parts_of(*variables, '\0'))
    started_.add_environment(std::string(variable));
  return {};
}

Result<void> HostContainerRun::start_container() {
  IVY_CHECK(carry_out(commands_.create, runtime_ + " to unpack the image"));
  say("step\t" + runtime_ + " to start the container");
  container_ = IVY_TRY(start(commands_.run));
  switch (wait(container_, kNoDeadline, true)) {
    case Happened::kConnected:
      return take_connection();
    case Happened::kExited:
      return failure(commands_.run, container_);
    default:
      return Error{Code::kCancelled, "cancelled"};
  }
}

// Looks the program up in the container, in a process that enters it as the workers will.
Result<HostFacts> HostContainerRun::inspect_program() const {
  say("step\tthe container's files");
  DescriptorPair answer = make_pipe();
  if (!answer) return errno_error(Code::kResourceExhausted, "pipe", errno);
  const pid_t child = fork();
  if (child < 0) return errno_error(Code::kResourceExhausted, "fork", errno);
  if (child == 0) {
    HostFacts facts;
    const Result<void> entered = enter_container(started_.pid());
    if (entered.ok()) {
      Hello hello = order_.hello();
      hello.set_search_path(kDefaultSearchPath);
      for (const std::string& variable : started_.environment())
        if (variable.starts_with("PATH=")) hello.set_search_path(variable.substr(5));
      add_program_facts(hello, milliseconds(order_.retry_ms()), nullptr, facts);
    } else {
      facts.set_container_error(entered.error().message);
      facts.set_container_fix(entered.error().fix);
    }
    _exit(write_all(answer.second.get(), facts.SerializeAsString()) ? 0 : 1);
  }
  answer.second.reset();
  const std::optional<std::string> text = read_from(answer.first.get(), kMaxOrderBytes);
  int status = 0;
  waitpid(child, &status, 0);
  HostFacts facts;
  if (!text || status != 0 || !facts.ParseFromString(*text))
    return Error{Code::kInternal, "cannot examine the container's files"};
  if (facts.container_error().empty()) return facts;
  const bool is_roots = runtime_ == "docker" && geteuid() != 0 && facts.container_fix().empty();
  return Error{Code::kPermissionDenied, facts.container_error(),
               is_roots ? "only root can enter the containers of a daemon that runs as root: use "
                          "--container-runtime podman, or rootless Docker"
                        : facts.container_fix()};
}

Result<void> HostContainerRun::open() {
  IVY_CHECK(read_order());
  IVY_CHECK(choose_runtime());
  IVY_CHECK(check_mounts());
  const ContainerSetting own = setting();
  IVY_CHECK(check_gpus(own));
  commands_ = container_commands(runtime_, own);
  listening_.reset(IVY_TRY(listen_unix(own.socket, SOCK_STREAM, 1)));
  IVY_CHECK(get_image());
  // From here on, whoever removes the job's directory also removes the container.
  if (!write_removal_command(directory_, commands_.remove))
    return errno_error(Code::kUnavailable, "write to " + directory_, errno);
  is_created_ = true;
  IVY_CHECK(start_container());
  *started_.mutable_facts() = IVY_TRY(inspect_program());
  if (!write_whole(container_started_file(directory_), started_.SerializeAsString()))
    return errno_error(Code::kUnavailable, "write to " + directory_, errno);
  return {};
}

// Returns when the supervisor closes our input, or the container has ended by itself.
void HostContainerRun::await_end() {
  for (;;) {
    pollfd waited[] = {{STDIN_FILENO, POLLIN, 0},
                       // Its peer has closed only its half that sends: await the hang-up.
                       {connection_.get(), 0, 0},
                       {container_.pidfd.get(), POLLIN, 0},
                       {container_.output.get(), POLLIN, 0}};
    if (poll(waited, std::size(waited), -1) < 0 && errno != EINTR) return;
    if (waited[3].revents != 0 && !keep_output(container_)) container_.output.reset();
    if (waited[0].revents != 0) return;
    if (waited[1].revents == 0 && waited[2].revents == 0) continue;
    say("lost\tits container was stopped by another program than ivyrun");
    return;
  }
}

// Removes the container and everything that the runtime has left running.
void HostContainerRun::remove() {
  is_cancelled_ = true;  // Do not wait for the input any more.
  connection_.reset();
  listening_.reset();
  bool is_clean = commands_.create.empty();
  if (container_.pid > 0 && wait(container_, kEndTimeout) != Happened::kExited) {
    end(container_);
    is_clean = false;
  }
  if (container_.status != 0) is_clean = false;
  if (is_created_ && !is_clean && !commands_.remove.empty())
    if (Result<Child> removal = start(commands_.remove); removal.ok())
      if (wait(*removal, kRemoveTimeout) != Happened::kExited) end(*removal);
  if (is_created_) forget_removal_command(directory_);
  end_descendants();
}

int HostContainerRun::run() {
  const Result<void> opened = open();
  if (opened.ok()) {
    say("ready");
    await_end();
  } else if (opened.error().code != Code::kCancelled) {
    say("fail\t" + in_one_line(opened.error().message) + "\t" + in_one_line(opened.error().fix));
  }
  remove();
  return 0;
}

}  // namespace

std::string container_order_file(const std::string& job_directory) {
  return job_directory + "/container.order";
}

std::string container_started_file(const std::string& job_directory) {
  return job_directory + "/container.started";
}

int run_container(int argc, char** argv) {
  if (argc != 1) return kExitUsage;
  prctl(PR_SET_NAME, "ivy-container");
  // Processes that a runtime leaves in the background become our children, not the supervisor's.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const int number : {SIGPIPE, SIGINT, SIGHUP}) signal(number, SIG_IGN);
  return HostContainerRun(argv[0]).run();
}

}  // namespace ivy
