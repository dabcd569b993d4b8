#include "launcher/options/env_files.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "launcher/options/env_file_grammar.h"

namespace ivy {

Result<Environment> read_env_files(const std::vector<std::string>& paths,
                                   const Environment& caller) {
  Environment all;
  for (const std::string& path : paths) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    if (!file) return errno_error(Code::kNotFound, "--env-file " + path, errno);
    if (content.view().size() > kMaxEnvFileBytes)
      return Error{Code::kInvalidArgument, "--env-file " + path + ": larger than 1 MiB"};
    Environment variables = IVY_TRY(parse_env_file(content.view(), path, caller));
    for (EnvVariable& variable : variables)
      set_variable(all, variable.name, std::move(variable.value));
  }
  return all;
}

}  // namespace ivy
