// SPDX-License-Identifier: Apache-2.0
// --app and --role: programs that run next to the user's. Pure; thread: any.
//
// The words of a command may contain names in braces, which app_plan.h replaces:
//
//   {job}                  the first letters of the job's id
//   {python} {directory}   the workers' interpreter; the job's directory on this host
//   {head} {address}       the address of the first host; of the host on which the command runs
//   {ROLE.port} {ROLE.1}   that role's first and second port: on the first host if the role runs
//                          only there, else on the host on which the command runs
//   {ROLE.addresses}       "HOST:PORT","HOST:PORT",...: that role's first port on each of its hosts
//   {node} {nodes}         this host's number, from 0, and the number of hosts
//   {rank} {world} {local} the client's rank, the number of clients in total and on its host
//   {workers} {all-workers} --nproc-per-node, and its total over all hosts
//   {arguments}            --app-args, as separate words
//   {program}              the user's program with its arguments, as separate words
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

enum class RoleHosts { kFirst, kOthers, kEvery };
// Ranks on which the user's program runs: the first, every one, or none.
enum class AppClient { kFirst, kEvery, kNone };

struct AppRole {
  std::string name;
  RoleHosts hosts = RoleHosts::kFirst;
  std::vector<std::string> command;
  int ports = 0;
  // Readiness check: none (""), "port" (its first port accepts connections), or a path that its
  // first port serves over HTTP.
  std::string ready = {};
  Environment environment = {};
  bool may_end = false;  // It may exit before the client without counting as failed.
};

struct AppSpec {
  std::string name;
  std::vector<AppRole> roles;
  AppClient client = AppClient::kFirst;
  Environment client_environment = {};
  // Runs on the first host before the client, and is repeated until it succeeds: all servers have
  // joined.
  std::vector<std::string> ready_command = {};
  // The command line gives the arguments of the roles, so its first word is not a program.
  bool serves_arguments = false;
};

// Returns the number of ports that each host reserves for all roles together.
int port_count(const AppSpec& app);

// Parses a role with one port: "NAME=COMMAND" or "NAME@first=COMMAND", @others, @every (the
// default). The command is split at blanks; words may be quoted.
Result<AppRole> parse_role(std::string_view text);
// Returns the app that consists of the roles of --role.
AppSpec app_of_roles(std::vector<AppRole> roles);

}  // namespace ivy
