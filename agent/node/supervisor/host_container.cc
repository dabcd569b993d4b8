// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/host_container.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "agent/node/container/container_role.h"
#include "agent/node/spawn/server_child.h"
#include "agent/node/supervisor/hello.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/text.h"
#include "proto/os/blocking.h"
#include "proto/os/files.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

// Longer than the keeper's own limits together.
constexpr std::chrono::seconds kCloseTimeout{45};
constexpr std::size_t kMaxStartedBytes = 4u << 20;

Error keeper_failure(std::string_view line) {
  take_part(line, '\t');
  const std::string reason(take_part(line, '\t'));
  return Error{Code::kUnavailable, reason, std::string(line)};
}

Result<ContainerStarted> read_started(const std::string& directory) {
  const std::string file = container_started_file(directory);
  const std::optional<std::string> text = read_file(file, kMaxStartedBytes);
  ContainerStarted started;
  if (text && started.ParseFromString(*text)) return started;
  return Error{Code::kInternal, "cannot read " + file};
}

// Reads the keeper's lines until the container runs or has failed. Blocks.
Result<ContainerStarted> await_container(int fd, const std::string& directory,
                                         const BlockingPool::Label& label) {
  std::string text;
  std::array<char, 4096> bytes{};
  for (;;) {
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      const std::string line = text.substr(0, end);
      text.erase(0, end + 1);
      if (line == "ready") return read_started(directory);
      if (line.starts_with("fail\t")) return keeper_failure(line);
      if (line.starts_with("step\t")) label.set(line.substr(5));
    }
    const ssize_t count = read(fd, bytes.data(), bytes.size());
    if (count == 0 || (count < 0 && errno != EINTR))
      return Error{Code::kUnavailable, "the process that keeps the container was killed"};
    if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

void HostContainer::open(const Hello& hello, std::function<void(Result<ContainerStarted>)> done) {
  const SupervisorStart& start = context_.start;
  ContainerOrder order;
  *order.mutable_hello() = hello;
  order.set_name("ivy-" + start.job_id.substr(0, 12) + "-" + std::to_string(start.host));
  order.set_job_directory(start.directory.path);
  order.set_program_directory(start.program_directory);
  order.set_retry_ms(static_cast<std::uint32_t>(retry_time(start.peer).count()));
  DescriptorPair input = make_pipe();
  DescriptorPair output = make_pipe();
  const std::string file = container_order_file(start.directory.path);
  if (!input || !output || !write_whole(file, order.SerializeAsString()))
    return done(errno_error(Code::kResourceExhausted, "write " + file, errno));
  ServerChild child;
  child.program = start.program_directory + "/ivy-node";
  child.arguments = {"ivy-node", "container", start.directory.path};
  child.descriptors = {{input.first.get(), STDIN_FILENO}, {output.second.get(), STDOUT_FILENO}};
  child.in_step = context_.is_in_step();
  pid_ = start_server(std::move(child));
  if (pid_ <= 0) {
    pid_ = 0;
    return done(errno_error(Code::kUnavailable, "start the container's keeper", errno));
  }
  spare_again();
  input_ = std::move(input.second);
  output_ = std::make_shared<Descriptor>(std::move(output.first));
  context_.blocking.run(
      "the container's runtime", BlockingPool::kNoDeadline,
      [from = output_, directory = start.directory.path](const BlockingPool::Label& label) {
        return await_container(from->get(), directory, label);
      },
      [this, done = std::move(done)](Result<ContainerStarted> started) {
        if (is_closing_) return;
        if (started.ok()) started_ = *started;
        done(std::move(started));
      });
}

void HostContainer::spare_again() {
  if (pid_ > 0 && context_.containment) context_.containment->spare_tree(pid_);
}

void HostContainer::close() {
  if (pid_ == 0 || std::exchange(is_closing_, true)) return;
  input_.reset();
  kill_timer_.expires_after(kCloseTimeout);
  kill_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && pid_ > 0) kill(pid_, SIGKILL);
  });
}

void HostContainer::reaped(pid_t pid) {
  if (pid_ == 0 || pid != pid_) return;
  pid_ = 0;
  input_.reset();
  kill_timer_.cancel();
  if (is_closing_) return owner_.container_closed();
  // If the container did not start, await_container() reports it.
  if (!started_) return;
  std::array<char, 4096> bytes{};
  fcntl(output_->get(), F_SETFL, O_NONBLOCK);
  const ssize_t count = read(output_->get(), bytes.data(), bytes.size());
  std::string_view line(bytes.data(), static_cast<std::size_t>(count > 0 ? count : 0));
  line = line.substr(0, line.find('\n'));
  const bool has_reason = take_part(line, '\t') == "lost";
  owner_.container_lost(has_reason ? std::string(line)
                                   : "the process that keeps its container was killed");
}

std::vector<std::string> HostContainer::enter_words(const std::string& working_directory) const {
  if (!started_) return {};
  return {context_.start.program_directory + "/ivy-node",
          "container-enter",
          "--pid",
          std::to_string(started_->pid()),
          "--directory",
          working_directory};
}

Environment HostContainer::environment() const {
  Environment environment;
  if (!started_) return environment;
  for (const std::string& variable : started_->environment()) {
    const std::size_t equals = variable.find('=');
    if (equals != std::string::npos)
      set_variable(environment, variable.substr(0, equals), variable.substr(equals + 1));
  }
  for (const EnvVariable& own : environment_of(environ))
    if (selects_devices(own.name)) set_variable(environment, own.name, own.value);
  return environment;
}

}  // namespace ivy
