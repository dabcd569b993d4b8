// SPDX-License-Identifier: Apache-2.0
// The options of `ivy-rendezvous serve` (serve.h). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/pages/command_page.h"

namespace ivy::store {

struct ServeOptions {
  std::string job_id;
  std::string token_file;
  int token_fd = -1;
  int owner_fd = -1;  // A pidfd of the process that started it.
  std::uint32_t generation = 0;
  int control_fd = -1;
  std::vector<int> native_fds;
  std::vector<int> torch_fds;
  std::vector<std::string> torch_peers;
  std::uint64_t torch_connections = 0;  // 0 means the server's default limits.
  std::string listen;                   // An ADDRESS:PORT for the native dialect.
  std::string torch;
  std::uint32_t stall_seconds = 0;
};

// The text of --help, generated from the table of options.
CommandPage serve_page();

// Takes the arguments from the verb on. Fails with InvalidArgument if they are wrong.
Result<ServeOptions> parse_serve_options(const std::vector<std::string>& words);
// Returns an InvalidArgument error; its fix is the command that lists the options.
Error wrong_option(std::string what);

}  // namespace ivy::store
