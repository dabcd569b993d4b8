// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/exec/exec_link.h"

#include <unistd.h>

#include <utility>

#include "launcher/options/exec_command.h"
#include "proto/contract/env.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Precedes the remote command: if the shell there has a terminal, as with `machinectl shell`, the
// terminal must not change bytes.
constexpr const char* kRawTerminal = "[ ! -t 0 ] || stty raw -echo; ";

}  // namespace

ExecLink::ExecLink(std::shared_ptr<TransportContext> context, Host host, HostLinkEvents& owner)
    : CommandLink(std::move(context), std::move(host), owner),
      words_(words_for_host(context_->options().exec_command, context_->options().ssh_port, host_)),
      program_(words_.front().substr(words_.front().rfind('/') + 1)) {
  // The addresses stay unknown: the host's name may mean nothing to this machine's resolver.
  up_.transport = Transport::kExec;
  up_.own_command = quoted_arguments(words_);
}

Awaitable<void> ExecLink::run() {
  const Result<std::shared_ptr<NodeUpload>> upload = co_await context_->node_upload(sequence_);
  if (!upload.ok()) co_return fail(LinkDown::from(LinkFailure::kBootstrap, upload.error()));
  slot_ = co_await context_->handshakes().acquire(sequence_);
  co_await report_progress(step(program_ + ": connecting"));
  ChildRequest request;
  request.arguments = words_;
  // The user's own program may need all of the user's variables.
  request.environment = environment_texts(environment_of(environ));
  const std::string input = kRawTerminal + context_->command_for(**upload, host_) + "\n";
  co_await carry(request, input);
}

LinkDown ExecLink::start_failure(const Error& error) const {
  return LinkDown{LinkFailure::kBootstrap, error.message,
                  error.fix.empty() ? words_.front() +
                                          " runs on this machine: install it, or correct the "
                                          "command of --exec or --transport"
                                    : error.fix};
}

LinkDown ExecLink::entry_timeout() const {
  const std::string limit = std::to_string(kEntryTimeout.count()) + " s";
  if (has_greeted())
    return LinkDown{LinkFailure::kUnreachable,
                    program_ + " made no progress for " + limit + " while ivy-node was sent", ""};
  return LinkDown{LinkFailure::kUnreachable,
                  program_ + " started no shell within " + limit + printed(), try_it()};
}

LinkStep ExecLink::delayed_step() const {
  return step(program_ + ": no shell has started there yet" + printed());
}

LinkDown ExecLink::end_reason() const {
  LinkDown down;
  down.failure = was_up() ? LinkFailure::kBroken : LinkFailure::kUnreachable;
  down.message = program_ + (was_up() ? " closed the connection" : " exited before ivy-node ran");
  const auto& status = exit_status();
  if (status) down.message += " (" + describe(*status) + ")";
  down.message += printed();
  if (was_up()) return down;
  down.fix = try_it();
  // /bin/sh exits in this way if its standard input is empty.
  if (status && status->is_success() && !has_printed())
    down.fix =
        "the command must pass its standard input on, as `kubectl exec -i` does; " + down.fix;
  return down;
}

RemoteText ExecLink::printed() const {
  const std::string line = last_line(error_text().empty() ? noise() : error_text());
  return line.empty() ? "" : "; it printed: " + line;
}

std::string ExecLink::try_it() const {
  return "this must print 'started': echo echo started | " + up_.own_command;
}

LinkStep ExecLink::step(RemoteText text) const {
  return {std::move(text), try_it() + "\nif it does, allow more time: --start-timeout"};
}

}  // namespace ivy
