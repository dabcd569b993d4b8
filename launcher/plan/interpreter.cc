#include "launcher/plan/interpreter.h"

#include <unistd.h>

#include "proto/contract/text.h"

namespace ivy {
namespace {

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// Empty when no directory of the PATH has it.
std::string find_in_path(const std::string& name, const Environment& caller) {
  const std::string* path = find_variable(caller, "PATH");
  std::string_view rest = "/usr/local/bin:/usr/bin:/bin";
  if (path != nullptr) rest = *path;
  while (!rest.empty()) {
    const std::string candidate = std::string(take_part(rest, ':')) + "/" + name;
    if (candidate.starts_with('/') && is_program(candidate)) return candidate;
  }
  return "";
}

std::string given_interpreter(const std::string& given, const Environment& caller) {
  if (given.find('/') != std::string::npos) return given;
  const std::string found = find_in_path(given, caller);
  return found.empty() ? given : found;
}

}  // namespace

std::vector<std::string> interpreter_candidates(const Options& options, const Environment& caller) {
  if (!options.python.empty()) return {given_interpreter(options.python, caller)};
  const std::string* configured = find_variable(caller, "IVY_PYTHON");
  if (configured != nullptr && !configured->empty())
    return {given_interpreter(*configured, caller)};
  std::vector<std::string> candidates;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string* prefix = find_variable(caller, name);
    if (prefix != nullptr && !prefix->empty() && is_program(*prefix + "/bin/python"))
      candidates.push_back(*prefix + "/bin/python");
  }
  for (const char* name : {"python3", "python"}) {
    std::string found = find_in_path(name, caller);
    if (!found.empty()) candidates.push_back(std::move(found));
  }
  if (candidates.empty()) return {"python3", "python"};
  return candidates;
}

}  // namespace ivy
