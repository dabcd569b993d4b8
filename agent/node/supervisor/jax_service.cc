// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/jax_service.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/node/spawn/server_child.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::string_view kName = "JAX's coordination service";

constexpr std::string_view kJaxServiceScript =
#include "agent/node/supervisor/jax_service.py.inc"
    ;

// Returns the last line that a process has written, which is the reason for its exit.
std::string last_line(const std::string& path) {
  constexpr std::size_t kMaxBytes = 400;
  const std::optional<std::string> text = read_file(path, 64u << 10);
  if (!text) return "";
  const std::size_t end = text->find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const std::size_t begin = text->find_last_of('\n', end);
  return text->substr(begin == std::string::npos ? 0 : begin + 1, end - begin).substr(0, kMaxBytes);
}

std::vector<std::string> texts_of(const Environment& environment) {
  std::vector<std::string> texts;
  for (const EnvVariable& variable : environment)
    texts.push_back(variable.name + "=" + variable.value);
  return texts;
}

}  // namespace

std::string JaxService::log_path() const {
  return context_.start.directory.path + "/jax-service.log";
}

void JaxService::begin(const HostPlan& plan, const Environment& environment) {
  end();
  if (!plan.has_jax_service()) return;
  const Descriptor log(
      open(log_path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return fail(errno_error(Code::kUnavailable, "write " + log_path(), errno).message);
  ServerChild child;
  child.program = plan.jax_service().interpreter();
  child.arguments = {child.program, "-c", std::string(kJaxServiceScript),
                     plan.jax_service().address(), std::to_string(plan.world_size())};
  child.environment = texts_of(environment);
  child.descriptors = {{log.get(), STDERR_FILENO}};
  child.in_step = context_.is_in_step();
  pid_ = start_server(std::move(child));
  if (pid_ > 0) return context_.containment->spare(pid_);
  pid_ = 0;
  fail(errno_error(Code::kUnavailable, "start " + std::string(kName), errno).message);
}

void JaxService::reaped(pid_t pid, int wait_status) {
  if (pid_ == 0 || pid != pid_) return;
  pid_ = 0;
  const std::string line = last_line(log_path());
  fail(server_end(std::string(kName), wait_status) + (line.empty() ? "" : ": " + line));
}

void JaxService::end() {
  if (const pid_t ended = std::exchange(pid_, 0); ended != 0) kill(ended, SIGKILL);
}

void JaxService::fail(const std::string& why) {
  Event event;
  event.mutable_jax_service_lost()->set_why(why);
  context_.events.send(event);
}

}  // namespace ivy
