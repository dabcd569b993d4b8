#include "launcher/options/app_table.h"

#include <algorithm>

#include "launcher/options/option_values.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using enum AppPlace;

// `ray start`, with two changes that no flag makes. A raylet waits for 15 s until a file says where
// the dashboard's agent listens, and ends when that takes longer: the port is known, so the file is
// there before. The server for ray:// addresses, which is started where grpcio is installed, would
// take port 10001, of which a host has one. A Ray that looks different is left as it is.
constexpr const char* kRayStart = R"py(
import sys
from ray._private import services
from ray.scripts import scripts

scripts.get_ray_client_dependency_error = lambda: "ivyrun starts none"
start = services.start_ray_process

def start_ray_process(command, *values, **named):
    try:
        if command[0] == services.RAYLET_EXECUTABLE:
            from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port
            said = dict(word.split("=", 1) for word in command if "=" in word)
            port = sys.argv[sys.argv.index("--dashboard-agent-listen-port") + 1]
            persist_port(said["--session_dir"], said["--node_id"], DASHBOARD_AGENT_LISTEN_PORT_NAME, int(port))
    except Exception:
        pass
    return start(command, *values, **named)

services.start_ray_process = start_ray_process
sys.exit(scripts.main())
)py";

constexpr const char* kRayIsComplete = R"py(
import sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info()
nodes = nodes.values() if hasattr(nodes, "values") else nodes
alive = sum(1 for node in nodes if node.state == 0)
sys.exit(0 if alive >= int(sys.argv[2]) else "%d of %s nodes have joined" % (alive, sys.argv[2]))
)py";

constexpr const char* kDaskIsComplete = R"py(
import sys
from distributed import Client
with Client(sys.argv[1], timeout=10) as client:
    client.wait_for_workers(int(sys.argv[2]), timeout=10)
)py";

constexpr const char* kXgboostTracker = R"py(
import sys
from xgboost.tracker import RabitTracker
host, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tracker = RabitTracker(n_workers=workers, host_ip=host, port=port, sortby="task")
tracker.start()
tracker.wait_for()
)py";

std::vector<std::string> words(std::string_view text) {
  const std::vector<std::string_view> parts = words_of(text);
  return {parts.begin(), parts.end()};
}

std::vector<std::string> python(const char* text, std::string_view arguments) {
  std::vector<std::string> command = {"{python}", "-c", text};
  for (const std::string_view word : words_of(arguments)) command.emplace_back(word);
  return command;
}

// How long parts of Ray look for each other when they start. Only --start-timeout is to end that:
// Ray's own limits of 5 to 60 s are too few where a host has many times more to do than it has
// cores. (A raylet whose first workers do not come in time lets ray.init() wait for ever.)
const Environment& patience_of_ray() {
  static const Environment patience = {{"RAY_NUM_REDIS_GET_RETRIES", "3600"},
                                       {"RAY_raylet_start_wait_time_s", "3600"},
                                       {"RAY_agent_register_timeout_ms", "3600000"},
                                       {"RAY_worker_register_timeout_seconds", "3600"},
                                       {"RAY_gcs_rpc_server_connect_timeout_s", "3600"}};
  return patience;
}

// A raylet waits for 15 s for agents that choose their ports themselves.
std::string agents_of_ray(const std::string& role, int first_port) {
  std::string text;
  for (const char* flag : {"dashboard-agent-listen-port", "dashboard-agent-grpc-port",
                           "metrics-export-port", "runtime-env-agent-port"})
    text += std::string(" --") + flag + " {" + role + "." + std::to_string(first_port++) + "}";
  return text + " {arguments}";
}

AppSpec ray() {
  AppSpec app;
  app.name = "ray";
  // Sockets below it have long names, which the job's own directory leaves no room for; all hosts
  // use the name that the first one has. It is removed with the job's directory.
  const std::string folder = "/tmp/ray-{job}";
  const std::string start =
      "start --block --disable-usage-stats --min-worker-port 0 --max-worker-port 0 ";
  AppRole head{"head", kFirst, {}, 7, "port"};
  head.command = python(kRayStart, start +
                                       "--head --node-ip-address {head} --port {head.port} "
                                       "--node-manager-port {head.1} --object-manager-port "
                                       "{head.2} --include-dashboard false --temp-dir " +
                                       folder + agents_of_ray("head", 3));
  AppRole worker{"worker", kOthers, {}, 6};
  worker.command = python(kRayStart, start +
                                         "--address {head}:{head.port} --node-ip-address "
                                         "{address} --node-manager-port {worker.port} "
                                         "--object-manager-port {worker.1}" +
                                         agents_of_ray("worker", 2));
  for (AppRole* role : {&head, &worker}) {
    role->environment = patience_of_ray();
    set_variable(role->environment, "IVY_SCRATCH", folder);
  }
  app.roles = {head, worker};
  app.client_environment = {{"RAY_ADDRESS", "{head}:{head.port}"}};
  app.ready_command = python(kRayIsComplete, "{head}:{head.port} {nodes}");
  return app;
}

AppSpec dask() {
  AppSpec app;
  app.name = "dask";
  AppRole scheduler{"scheduler", kFirst, {}, 2, "port"};
  scheduler.command = words(
      "{python} -m dask scheduler --host {head} --port {scheduler.port} --dashboard-address "
      "{head}:{scheduler.1}");
  AppRole worker{"worker", kEvery, {}, 0};
  worker.command = words(
      "{python} -m dask worker tcp://{head}:{scheduler.port} --host {address} --nworkers {workers} "
      "--name host{node} --local-directory {directory} --no-dashboard {arguments}");
  app.roles = {scheduler, worker};
  app.client_environment = {{"DASK_SCHEDULER_ADDRESS", "tcp://{head}:{scheduler.port}"}};
  app.ready_command = python(kDaskIsComplete, "tcp://{head}:{scheduler.port} {all-workers}");
  return app;
}

AppSpec xgboost() {
  AppSpec app;
  app.name = "xgboost";
  AppRole tracker{"tracker", kFirst, {}, 1, "port"};
  tracker.command = python(kXgboostTracker, "{head} {tracker.port} {world}");
  tracker.may_end = true;
  app.roles = {tracker};
  app.client = AppClient::kEvery;
  app.client_environment = {{"DMLC_TRACKER_URI", "{head}"},
                            {"DMLC_TRACKER_PORT", "{tracker.port}"},
                            {"DMLC_NUM_WORKER", "{world}"},
                            {"DMLC_TASK_ID", "{rank}"}};
  return app;
}

// MXNet's and BytePS's: every role is the user's program, which looks at DMLC_ROLE.
AppSpec ps_lite() {
  AppSpec app;
  app.name = "ps-lite";
  const Environment common = {{"DMLC_PS_ROOT_URI", "{head}"},
                              {"DMLC_PS_ROOT_PORT", "{scheduler.port}"},
                              {"DMLC_NUM_WORKER", "{world}"},
                              {"DMLC_NUM_SERVER", "{nodes}"},
                              {"DMLC_NODE_HOST", "{address}"}};
  const auto with_role = [&](const char* role) {
    Environment environment = common;
    set_variable(environment, "DMLC_ROLE", role);
    return environment;
  };
  app.roles = {{"scheduler", kFirst, {"{program}"}, 1, "", with_role("scheduler"), true},
               {"server", kEvery, {"{program}"}, 0, "", with_role("server"), true}};
  app.client = AppClient::kEvery;
  app.client_environment = with_role("worker");
  return app;
}

// ParameterServerStrategy: the program is every task, as TF_CONFIG has it. Its parameter server and
// its workers wait in Server.join() for ever, so the chief's end is the end.
AppSpec tf_ps() {
  AppSpec app;
  app.name = "tf-ps";
  const auto task = [](const char* type, const char* index) {
    const std::string cluster =
        R"({"cluster":{"chief":["{head}:{ps.1}"],"ps":[{ps.addresses}],"worker":[{worker.addresses}]},)";
    return Environment{
        {"TF_CONFIG", cluster + R"("task":{"type":")" + type + R"(","index":)" + index + "}}"}};
  };
  app.roles = {{"ps", kFirst, {"{program}"}, 2, "", task("ps", "0"), true},
               {"worker", kEvery, {"{program}"}, 1, "", task("worker", "{node}"), true}};
  app.client_environment = task("chief", "0");
  return app;
}

// Two roles, because only the first host answers requests.
AppSpec model_server(const std::string& name, const std::string& first, const std::string& others) {
  AppSpec app;
  app.name = name;
  AppRole server{"server", kFirst, words(first), 2, "/health"};
  AppRole part{"part", kOthers, words(others), 0};
  for (AppRole* role : {&server, &part})
    role->environment = {{"VLLM_HOST_IP", "{address}"}, {"SGLANG_HOST_IP", "{address}"}};
  app.roles = {server, part};
  app.client_environment = {{"OPENAI_BASE_URL", "http://{head}:{server.port}/v1"},
                            {"OPENAI_API_KEY", "EMPTY"}};
  app.serves_arguments = true;
  return app;
}

AppSpec vllm() {
  const std::string common =
      "{python} -m vllm.entrypoints.cli.main serve {arguments} --nnodes {nodes} --node-rank {node} "
      "--master-addr {head} --master-port {server.1}";
  return model_server("vllm", common + " --host {head} --port {server.port}",
                      common + " --headless");
}

AppSpec sglang() {
  const std::string common =
      "{python} -m sglang.launch_server {arguments} --nnodes {nodes} --node-rank {node} "
      "--dist-init-addr {head}:{server.1}";
  return model_server("sglang", common + " --host {head} --port {server.port}", common);
}

using MakeApp = AppSpec();
constexpr std::pair<std::string_view, MakeApp*> kApps[] = {
    {"ray", ray},     {"dask", dask}, {"xgboost", xgboost}, {"ps-lite", ps_lite},
    {"tf-ps", tf_ps}, {"vllm", vllm}, {"sglang", sglang},
};

Error wrong_role(std::string_view text, const std::string& why) {
  return usage_error("\"" + std::string(text) + "\" is not a role: " + why,
                     "NAME=COMMAND, NAME@first=COMMAND or NAME@others=COMMAND, such as "
                     "'server@first=./server --port {server.port}'");
}

}  // namespace

std::string app_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, make] : kApps) names.push_back(name);
  return joined(names, ", ");
}

int port_count(const AppSpec& app) {
  int count = 0;
  for (const AppRole& role : app.roles) count += role.ports;
  return count;
}

Result<AppSpec> app_named(std::string_view name) {
  for (const auto& [known, make] : kApps)
    if (known == name) return make();
  return usage_error("\"" + std::string(name) + "\" is not one of jax-service, " + app_names());
}

Result<AppRole> parse_role(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return wrong_role(text, "it has no command");
  std::string_view name = text.substr(0, equals);
  std::string_view place = "every";
  if (const std::size_t at = name.find('@'); at != std::string_view::npos) {
    place = name.substr(at + 1);
    name = name.substr(0, at);
  }
  if (!is_env_name(name)) return wrong_role(text, "a name has letters, digits and _");
  AppRole role;
  role.name = name;
  if (place != "first" && place != "others" && place != "every")
    return wrong_role(text, "it runs @first, @others or @every");
  role.place = place == "first" ? kFirst : place == "others" ? kOthers : kEvery;
  Result<std::vector<std::string>> command = quoted_words(text.substr(equals + 1));
  if (!command.ok()) return wrong_role(text, command.error().message);
  role.command = std::move(command).value();
  if (role.command.empty()) return wrong_role(text, "it has no command");
  const auto names_port = [&](const std::string& word) {
    return word.find("{" + role.name + ".port}") != std::string::npos;
  };
  role.ports = 1;
  if (std::any_of(role.command.begin(), role.command.end(), names_port)) role.ready = "port";
  return role;
}

AppSpec app_of_roles(std::vector<AppRole> roles) {
  AppSpec app;
  app.name = "roles";
  for (const AppRole& role : roles) {
    if (role.place != AppPlace::kFirst) continue;
    std::string name = "IVY_ROLE_" + role.name;
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
      return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    app.client_environment.push_back({name, "{head}:{" + role.name + ".port}"});
  }
  for (AppRole& role : roles) role.environment = app.client_environment;
  app.roles = std::move(roles);
  return app;
}

}  // namespace ivy
