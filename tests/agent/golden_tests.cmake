# SPDX-License-Identifier: Apache-2.0
# agent.proto against every released version. Needs the full protobuf runtime, because it compares descriptors.
add_executable(agent_protocol_tests agent_protocol_test.cc)
target_link_libraries(agent_protocol_tests PRIVATE protobuf::libprotobuf GTest::gtest_main)
target_compile_definitions(agent_protocol_tests PRIVATE
  IVY_CURRENT_PROTO="${CMAKE_SOURCE_DIR}/proto/wire/agent.proto"
  IVY_FROZEN_PROTOS="${CMAKE_SOURCE_DIR}/tests/agent/golden"
  IVY_PROTOC="$<TARGET_FILE:protobuf::protoc>")
gtest_discover_tests(agent_protocol_tests DISCOVERY_MODE PRE_TEST PROPERTIES LABELS pure TIMEOUT 60)
