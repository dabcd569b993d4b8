#include "launcher/links/choice/agents_program.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "proto/os/own_program.h"

namespace ivy {
namespace {

constexpr const char* kFix = "build or install it beside ivyrun";

bool is_this_program(const std::string& path) {
  struct stat own {};
  struct stat other {};
  return stat("/proc/self/exe", &own) == 0 && stat(path.c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

}  // namespace

std::string agents_program_path() { return program_directory() + "/ivyrun-agents"; }

Error become_agents_program(char* const* argv) {
  const std::string path = agents_program_path();
  // By path it would be this file, by name a copy of it.
  if (is_this_program(path)) {
    return Error{Code::kInvalidArgument, path + " is ivyrun itself, without agents", kFix};
  }
  execv(path.c_str(), argv);
  Error failure = errno_error(Code::kNotFound, path, errno);
  failure.fix = kFix;
  return failure;
}

void take_the_name_of_ivyrun() { prctl(PR_SET_NAME, "ivyrun"); }

}  // namespace ivy
