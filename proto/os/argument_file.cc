// SPDX-License-Identifier: Apache-2.0
#include "proto/os/argument_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>

#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Larger than the addresses of all hosts of any job.
constexpr std::size_t kMaxBytes = 64u << 20;

}  // namespace

Descriptor make_argument_file(const std::vector<std::string>& arguments) {
  std::string bytes;
  for (const std::string& argument : arguments) bytes.append(argument).push_back('\0');
  Descriptor file(memfd_create("ivy-arguments", MFD_CLOEXEC));
  if (!file || !write_all(file.get(), bytes) || lseek(file.get(), 0, SEEK_SET) != 0)
    return Descriptor();
  return file;
}

Result<std::vector<std::string>> with_argument_file(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  if (argc < 2 || arguments[static_cast<std::size_t>(argc) - 2] != kArgumentsFd) return arguments;
  const std::optional<int> number = to_number<int>(arguments.back());
  arguments.resize(arguments.size() - 2);
  if (!number) return Error{Code::kInvalidArgument, std::string(kArgumentsFd) + " needs a number"};
  const Descriptor file(*number);
  const std::optional<std::string> bytes = read_from(file.get(), kMaxBytes);
  if (!bytes) return errno_error(Code::kUnavailable, "read the arguments", errno);
  std::string_view rest = *bytes;
  while (!rest.empty()) arguments.emplace_back(take_part(rest, '\0'));
  return arguments;
}

}  // namespace ivy
