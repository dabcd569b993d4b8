// SPDX-License-Identifier: Apache-2.0
// The life of a worker: prepare() builds the launch on the loop; a pool thread runs
// WorkerLaunch::find_program(), begin() and await(); finish_start() takes over the process on the
// loop, or fail() reports that there is none; collect() reaps it when it exits and report_exit()
// tells the launcher. next_state() allows only these transitions (enter()).
#include "agent/node/workers/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "agent/node/workers/python_hook.h"
#include "proto/contract/env.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// waitid()'s P_PIDFD, which glibc 2.36 declares only with newer kernel headers.
constexpr auto kWaitPidfd = static_cast<idtype_t>(3);

Environment from_plan(const google::protobuf::RepeatedPtrField<Variable>& variables) {
  Environment environment;
  for (const Variable& variable : variables)
    environment.push_back({variable.name(), variable.value()});
  return environment;
}

// Creates a pipe whose end on our side is non-blocking; the worker's end is an ordinary blocking
// one.
int make_pipe(Descriptor& reader, Descriptor& writer, bool reader_is_local) {
  DescriptorPair ends = ivy::make_pipe();
  if (!ends) return errno;
  reader = std::move(ends.first);
  writer = std::move(ends.second);
  const Descriptor& local_end = reader_is_local ? reader : writer;
  return fcntl(local_end.get(), F_SETFL, O_NONBLOCK) == 0 ? 0 : errno;
}

// Returns the errno that explains why the directory cannot be entered, or 0.
int directory_error(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

// Makes another program execute the requested one, whose path and arguments it receives.
void put_in_front(const std::vector<std::string>& words, SpawnRequest& request) {
  std::vector<std::string> arguments = words;
  arguments.insert(arguments.end(), {"--path", request.executable, "--"});
  arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
  request.executable = words.front();
  request.arguments = std::move(arguments);
}

// --wrap: makes the user's tool execute the program, whose path it receives.
void put_tool_in_front(const std::string& tool, const std::vector<std::string>& words,
                       SpawnRequest& request) {
  std::vector<std::string> arguments = words;
  arguments.push_back(request.executable);
  arguments.insert(arguments.end(), request.arguments.begin() + 1, request.arguments.end());
  request.executable = tool;
  request.arguments = std::move(arguments);
}

// Finds the program in the worker's PATH. `step` of the result is empty if it was found.
SpawnFailure find_program(const std::string& program, const SpawnRequest& request,
                          std::string& target) {
  const std::string* path = find_variable(request.environment, "PATH");
  if (path == nullptr) path = find_variable(request.shared->variables, "PATH");
  int error = ENOENT;
  const Result<std::string> found = find_executable(
      program, path != nullptr ? *path : kDefaultSearchPath, request.working_directory, &error);
  if (!found.ok()) return {"exec", program, error};
  target = *found;
  return {};
}

}  // namespace

Environment inherited_environment(char* const* environment_block,
                                  const std::vector<std::string>& unset) {
  Environment environment = environment_of(environment_block);
  std::erase_if(environment, [&](const EnvVariable& variable) {
    const EnvRule rule = env_rule(variable.name);
    return rule == EnvRule::kScrub || rule == EnvRule::kSet ||
           std::find(unset.begin(), unset.end(), variable.name) != unset.end();
  });
  return environment;
}

int WorkerLaunch::Pipes::make(bool with_input) {
  int error = make_pipe(stdout_reader, stdout_writer, true);
  if (error == 0) error = make_pipe(stderr_reader, stderr_writer, true);
  if (error == 0 && with_input) error = make_pipe(stdin_reader, stdin_writer, false);
  return error;
}

void WorkerLaunch::find_program(const BlockingPool::Label& label) {
  if (!pending_.failure.step.empty()) return;
  if (is_in_container_) {
    request_.executable = program_;
    if (!wrap_.empty()) put_tool_in_front(wrap_.front(), wrap_, request_);
    for (const std::vector<std::string>& words : in_front_) put_in_front(words, request_);
    return;
  }
  label.set("the file system of " + request_.working_directory);
  const int directory = directory_error(request_.working_directory);
  if (directory != 0) {
    pending_.failure = {"chdir", request_.working_directory, directory};
    return;
  }
  label.set("the file systems on the path of the program " + program_);
  std::string tool;
  pending_.failure = ivy::find_program(program_, request_, request_.executable);
  if (pending_.failure.step.empty() && !wrap_.empty())
    pending_.failure = ivy::find_program(wrap_.front(), request_, tool);
  if (!pending_.failure.step.empty()) return;
  if (!tool.empty()) put_tool_in_front(tool, wrap_, request_);
  for (const std::vector<std::string>& words : in_front_) put_in_front(words, request_);
}

bool WorkerLaunch::open_pipes() {
  if (!pending_.failure.step.empty()) return false;
  const int pipe_error = pipes_.stdout_writer ? 0 : pipes_.make(has_input_);
  if (pipe_error != 0) {
    pending_.failure = {"pipe", "", pipe_error};
    return false;
  }
  request_.stdin_fd = pipes_.stdin_reader.get();
  request_.stdout_fd = pipes_.stdout_writer.get();
  request_.stderr_fd = pipes_.stderr_writer.get();
  return true;
}

// From here on only the worker may hold its ends, so that the streams end when it closes them.
void WorkerLaunch::Pipes::close_workers_ends() {
  stdin_reader.reset(-1);
  stdout_writer.reset(-1);
  stderr_writer.reset(-1);
}

void WorkerLaunch::begin() {
  if (pending_.process.pid > 0 || !open_pipes()) return;
  pending_ = begin_spawn(request_);
  pipes_.close_workers_ends();
}

const SpawnRequest* WorkerLaunch::request_fork() { return open_pipes() ? &request_ : nullptr; }

void WorkerLaunch::take_forked(SpawnResult result) {
  pending_.process = result.process;
  pending_.failure = std::move(result.failure);
  pending_.is_awaited = true;
  pipes_.close_workers_ends();
}

void WorkerLaunch::await(const BlockingPool::Label& label) {
  if (pending_.is_awaited) return;
  label.set("the file system of " + request_.working_directory + ", or of " + request_.executable);
  await_spawn(pending_);
}

Worker::Worker(WorkerContext& context, std::uint32_t rank, std::uint32_t rejoins)
    : context_(context), rank_(rank), rejoins_(rejoins), pidfd_(context.loop) {}

Worker::~Worker() = default;

Environment Worker::own_environment(const WorkerGroup& group, const WorkerSpec& spec) const {
  Environment environment;
  for (EnvVariable& variable : from_plan(spec.environment()))
    set_variable(environment, std::move(variable.name), std::move(variable.value));
  // Without a cgroup, the containment recognizes the job's processes by these two variables.
  set_variable(environment, "IVY_JOB_ID", context_.job_id);
  set_variable(environment, "IVY_HOST_INDEX", std::to_string(context_.host));
  set_variable(environment, "IVY_TOKEN_FILE", context_.directory.token_file());
  if (!context_.control_socket.empty())
    set_variable(environment, "IVY_CONTROL", context_.control_socket);
  set_variable(environment, "TORCHELASTIC_ERROR_FILE",
               context_.directory.error_file(group.generation, rank_));
  if (rejoins_ > 0) set_variable(environment, "IVY_REJOIN", std::to_string(rejoins_));
  if (group.python_hook)
    set_variable(environment, "IVY_STACK_FILE",
                 stack_file(context_.directory, group.generation, rank_));
  return environment;
}

std::unique_ptr<WorkerLaunch> Worker::prepare(const WorkerGroup& group, const WorkerSpec& spec) {
  auto launch = std::make_unique<WorkerLaunch>();
  generation_ = group.generation;
  has_input_ = spec.standard_input();
  // Removes the file of the rank's previous process.
  if (rejoins_ > 0) unlink(context_.directory.error_file(generation_, rank_).c_str());
  launch->has_input_ = has_input_;
  launch->program_ = group.arguments.front();
  launch->wrap_.assign(spec.wrap().begin(), spec.wrap().end());
  if (!group.mpi_exec.empty()) launch->in_front_.push_back(group.mpi_exec);
  if (spec.has_app()) {
    const std::string file = context_.directory.path + "/app-" + std::to_string(group.generation) +
                             "-" + std::to_string(rank_);
    if (!write_whole(file, spec.app().SerializeAsString()))
      launch->pending_.failure = {"write", file, errno};
    launch->in_front_.push_back({group.node_program, "app-run", file});
  }
  SpawnRequest& request = launch->request_;
  request.arguments = group.arguments;
  request.environment = own_environment(group, spec);
  request.shared = group.environment;
  // A container's directories exist only in it.
  launch->is_in_container_ = !group.container_enter.empty();
  if (launch->is_in_container_) launch->in_front_.push_back(group.container_enter);
  request.working_directory = launch->is_in_container_ ? "/" : group.working_directory;
  request.own_session = group.own_sessions;
  request.limits = group.limits;
  request.cgroup_fd = context_.containment.cgroup_fd();
  request.cores = parse_core_list(spec.cores());
  if (spec.has_memory_node()) request.memory_node = static_cast<int>(spec.memory_node());
  return launch;
}

void Worker::finish_start(const WorkerGroup& group, WorkerLaunch& launch) {
  const SpawnResult result = finish_spawn(std::exchange(launch.pending_, {}));
  if (!result.ok()) return fail(result.failure.step, result.failure.path, result.failure.error);
  pid_ = result.process.pid;
  pidfd_.assign(result.process.pidfd);
  enter(WorkerEvent::kSpawned);
  Event event;
  event.mutable_started()->set_generation(generation_);
  event.mutable_started()->set_rank(rank_);
  event.mutable_started()->set_pid(pid_);
  event.mutable_started()->set_rejoins(rejoins_);
  event.mutable_started()->set_at_ns(monotonic_ns());
  context_.owner.send(event);
  if (has_input_) context_.input.open(rank_, std::move(launch.pipes_.stdin_writer));
  add_streams(group, launch.pipes_);
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [this](const boost::system::error_code& error) {
                      if (!error) context_.owner.on_exit(*this);
                    });
}

void Worker::fail(const std::string& step, const std::string& path, int error) {
  enter(WorkerEvent::kSpawnFailed);
  if (has_input_) context_.input.close(rank_);
  Event event;
  StartFailed* failed = event.mutable_start_failed();
  failed->set_generation(generation_);
  failed->set_rank(rank_);
  failed->set_error(error);
  failed->set_step(step);
  failed->set_path(path);
  failed->set_at_ns(monotonic_ns());
  context_.owner.send(event);
}

void Worker::add_streams(const WorkerGroup& group, WorkerLaunch::Pipes& pipes) {
  open_streams_ = 2;
  add_stream(group, pipes.stdout_reader.release(), 1);
  add_stream(group, pipes.stderr_reader.release(), 2);
}

void Worker::add_stream(const WorkerGroup& group, int fd, std::uint8_t stream) {
  std::optional<NodeRankFile::Name> log;
  if (!group.log_directory.empty())
    log = {group.log_directory, context_.job_id, generation_, rank_, stream};
  streams_.push_back(
      context_.output.add(fd, {generation_, rank_, stream}, log, [this] { output_ended(); }));
}

void Worker::enter(WorkerEvent event) {
  const std::optional<WorkerState> next = next_state(state_, event);
  IVY_ASSERT(next.has_value());
  state_ = *next;
}

void Worker::output_ended() {
  if (--open_streams_ > 0) return;
  enter(WorkerEvent::kOutputEnded);
  context_.owner.on_change();
}

bool Worker::has_ended() {
  if (!is_alive(state_)) return true;
  pollfd waiting{pidfd_.native_handle(), POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

// Returns false if the worker cannot be reaped yet.
bool Worker::query_exit(siginfo_t& info, int flags) {
  const auto pidfd = static_cast<id_t>(pidfd_.native_handle());
  int result = 0;
  do {
    result = waitid(kWaitPidfd, pidfd, &info, WEXITED | WNOHANG | flags);
  } while (result != 0 && errno == EINTR);
  return result == 0 && info.si_pid == pid_;
}

bool Worker::collect(const ExitCircumstances& circumstances) {
  if (!is_alive(state_)) return true;
  siginfo_t info{};
  if (!query_exit(info, WNOWAIT)) return false;
  // Until the worker is reaped, its pid belongs to it and to its process group.
  const bool has_failed = !exit_status_from_wait(info.si_code, info.si_status).is_success();
  if (circumstances.fails_alone && has_failed && pid_ > 1) kill(-pid_, SIGKILL);
  query_exit(info, 0);
  if (ended_at_ns_ == 0) ended_at_ns_ = monotonic_ns();
  boost::system::error_code ignored;
  pidfd_.close(ignored);
  const std::uint64_t input_taken = has_input_ ? context_.input.taken(rank_) : 0;
  if (has_input_) context_.input.close(rank_);
  enter(WorkerEvent::kExited);
  report_exit(info, circumstances, input_taken);
  context_.owner.on_change();
  return true;
}

void Worker::report_exit(const siginfo_t& info, const ExitCircumstances& circumstances,
                         std::uint64_t input_taken) {
  ExitStatus status = exit_status_from_wait(info.si_code, info.si_status);
  MpiEnd mpi;
  // A rank that misbehaves after the stop has started did not fail.
  if (!circumstances.stopping) mpi = context_.owner.classify_mpi_end(rank_, status);
  if (mpi.code) status = ExitStatus{.code = *mpi.code};
  exit_status_ = status;
  ended_out_of_memory_ = status.signal == SIGKILL && !circumstances.killed_by_supervisor &&
                         !was_killed_by_supervisor_ &&
                         context_.owner.has_unattributed_memory_kill();
  Event event;
  Exited* exited = event.mutable_exited();
  exited->set_generation(generation_);
  exited->set_rank(rank_);
  exited->set_pid(pid_);
  exited->set_code(status.code);
  exited->set_signal(status.signal);
  exited->set_cause(mpi.cause);
  exited->set_input_taken(input_taken);
  exited->set_mpi_absent(mpi.is_absent);
  exited->set_core_dumped(info.si_code == CLD_DUMPED);
  exited->set_after_stop(circumstances.stopping);
  exited->set_at_ns(ended_at_ns_);
  exited->set_out_of_memory(ended_out_of_memory_);
  exited->set_error_file(read_error_file());
  exited->set_operations(circumstances.operations);
  context_.owner.send(event);
}

std::string Worker::read_error_file() const {
  const std::string path = context_.directory.error_file(generation_, rank_);
  return read_file(path, kMaxErrorFileBytes, O_NOFOLLOW | O_NONBLOCK).value_or("");
}

void Worker::send_signal(int signal) {
  if (!is_alive(state_)) return;
  if (signal == SIGKILL) was_killed_by_supervisor_ = true;
  // Signal the whole process group, as a terminal does: a stopped shell or --wrap tool would leave
  // its children running. The pid is still the worker's, because it has not been reaped.
  if ((signal == SIGSTOP || signal == SIGCONT) && pid_ > 1) {
    kill(-pid_, signal);
    return;
  }
  // Sent through the pidfd, so that the signal can never reach another process with the same pid.
  syscall(SYS_pidfd_send_signal, pidfd_.native_handle(), signal, nullptr, 0);
}

void Worker::tick(std::uint64_t now_ns) {
  if (state_ != WorkerState::kDraining || now_ns - ended_at_ns_ < kDrainNs) return;
  for (const OutputPump::StreamId stream : streams_) context_.output.cut(stream);
}

}  // namespace ivy
