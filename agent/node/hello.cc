#include "agent/node/hello.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/node/host_facts.h"
#include "agent/node/program_facts.h"

namespace ivy {
namespace {

void add_program(const Hello& hello, HostFacts& facts) {
  ProgramRequest request;
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
  facts.set_program_sha256(program.sha256);
  facts.set_program_is_script(program.is_script);
  facts.set_interpreter(program.interpreter);
  facts.set_interpreter_version(program.interpreter_version);
  facts.set_interpreter_error(program.interpreter_error);
  facts.set_search_path(program.search_path);
}

void add_port(const Hello& hello, std::optional<ReservedPort>& port, HostFacts& facts) {
  if (!port) {
    Result<ReservedPort> reserved = ReservedPort::reserve(hello.port_low(), hello.port_high());
    if (!reserved.ok()) {
      facts.set_reserved_port_error(reserved.error().message);
      return;
    }
    port.emplace(std::move(reserved).value());
  }
  facts.set_reserved_port(port->port());
}

}  // namespace

Result<void> write_token_file(const std::string& path, const std::string& token) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
  if (fd < 0 && errno == EEXIST) return {};
  if (fd < 0) return errno_error(Code::kUnavailable, "token file " + path, errno);
  const ssize_t written = write(fd, token.data(), token.size());
  const int error = written < 0 ? errno : ENOSPC;
  close(fd);
  if (written == static_cast<ssize_t>(token.size())) return {};
  unlink(path.c_str());
  return errno_error(Code::kResourceExhausted, "token file " + path, error);
}

HelloOk answer_hello(const Hello& hello, const Containment& containment,
                     const JobDirectory& directory, std::optional<ReservedPort>& port) {
  HelloOk answer;
  HostFacts& facts = *answer.mutable_facts();
  facts = collect_host_facts();
  add_program(hello, facts);
  if (hello.reserve_port()) add_port(hello, port, facts);
  facts.set_containment(containment.describe());
  facts.set_job_directory(directory.path);
  return answer;
}

}  // namespace ivy
