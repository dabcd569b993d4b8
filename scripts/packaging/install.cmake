# SPDX-License-Identifier: Apache-2.0
# The layout that `cmake --install` creates. Programs and libraries find each other by relative paths,
# so the tree may be moved. A build tree has the same layout.
#
#   bin/ivyrun ivyctl ivy-node ivy-probe ivy-pmix ivy-rendezvous ivy-agent ivy-agent-cert
#   include/ivycomm.h ivycomm_types.h ivycomm_operations.def ivycomm.hpp ivycomm_*.hpp
#   lib/libivycomm.so.1, lib/cmake/ivy, lib/pkgconfig/ivycomm.pc
#   lib/ivyrun/bundle-ARCH.run(.sha256)   sent to hosts of that architecture that do not have this build
#   lib/ivyrun/ivycomm_calls.abi3.so      the Python package's extension
#   lib/ivyrun/libivy_nccl_profiler.so    NCCL's profiler plugin, which reports to ivyctl
#   lib/ivyrun/python/ivycomm             ivy-node appends python/ to the workers' PYTHONPATH,
#   lib/ivyrun/hook/sitecustomize.py      and hook/, unless --no-python-hook is given
#   lib/systemd/system/ivy-agent@.service
#   share/man/man1, share/bash-completion, share/zsh, share/fish
#   share/ivyrun/apps                     the files for --app NAME
#   share/doc/ivyrun                      license, docs, examples, templates for sbatch and systemd
include(CMakePackageConfigHelpers)

foreach(program ivyrun ivyctl ivy-node ivy-probe ivy-pmix ivy-agent)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION bin COMPONENT ivyrun)
  endif()
endforeach()
install(PROGRAMS ${CMAKE_SOURCE_DIR}/agent/daemon/ivy-agent-cert DESTINATION bin COMPONENT ivyrun)
if(TARGET ivy-node)
  install(FILES ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/ivy-rendezvous DESTINATION bin COMPONENT ivyrun)
  # Also those of other architectures (links/bundle.cmake).
  install(CODE "file(GLOB bundles \"${CMAKE_BINARY_DIR}/lib/ivyrun/bundle-*.run*\")
  file(INSTALL \${bundles} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/ivyrun\")" COMPONENT ivyrun)
  install(FILES ${CMAKE_BINARY_DIR}/lib/ivyrun/hook/sitecustomize.py DESTINATION lib/ivyrun/hook
    COMPONENT ivyrun)
endif()

install(TARGETS ivycomm EXPORT ivy
  LIBRARY DESTINATION lib COMPONENT comm NAMELINK_COMPONENT comm-dev
  INCLUDES DESTINATION include)
# ivycomm.jax loads it from the directory of libivycomm.
install(TARGETS ivycomm_jax LIBRARY DESTINATION lib COMPONENT comm)
install(FILES ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm.h ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_types.h
  ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm.hpp ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_buffer.hpp
  ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_collectives.hpp ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_messages.hpp
  ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_uneven.hpp ${CMAKE_SOURCE_DIR}/comm/contract/ivycomm_work.hpp
  DESTINATION include COMPONENT comm-dev)
install(FILES ${CMAKE_SOURCE_DIR}/proto/wire/operations.def RENAME ivycomm_operations.def
  DESTINATION include COMPONENT comm-dev)
install(TARGETS ivy_nccl_profiler LIBRARY DESTINATION lib/ivyrun COMPONENT ivyrun)
install(TARGETS ivycomm_calls LIBRARY DESTINATION lib/ivyrun COMPONENT comm)
if(TARGET ivycomm_calls_free_threaded)
  install(TARGETS ivycomm_calls_free_threaded LIBRARY DESTINATION lib/ivyrun COMPONENT comm)
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/comm/python/ivycomm DESTINATION lib/ivyrun/python
  COMPONENT comm FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
# The entry points for init_process_group("ivy") of torch.
install(FILES ${CMAKE_SOURCE_DIR}/comm/python/ivycomm_torch_entry.py DESTINATION lib/ivyrun/python COMPONENT comm)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/comm/python/ivycomm_entry_points.dist-info DESTINATION lib/ivyrun/python
  COMPONENT comm)

# find_package(ivy) provides the target ivy::comm.
install(EXPORT ivy NAMESPACE ivy:: FILE ivy-config.cmake DESTINATION lib/cmake/ivy COMPONENT comm-dev)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ivy-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ivy-config-version.cmake DESTINATION lib/cmake/ivy COMPONENT comm-dev)

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/ivycomm.pc @ONLY CONTENT [=[
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: ivycomm
Description: Rank, world size and collectives inside a worker of ivyrun
Version: @PROJECT_VERSION@
Libs: -L${libdir} -livycomm
Cflags: -I${includedir}
]=])
install(FILES ${CMAKE_BINARY_DIR}/ivycomm.pc DESTINATION lib/pkgconfig COMPONENT comm-dev)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/launcher/apps DESTINATION share/ivyrun COMPONENT ivyrun
  FILES_MATCHING PATTERN "*.toml")

# Documentation, examples and the systemd unit.
install(FILES ${CMAKE_SOURCE_DIR}/scripts/systemd/ivy-agent@.service DESTINATION lib/systemd/system COMPONENT ivyrun)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md DESTINATION share/doc/ivyrun COMPONENT ivyrun)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION share/doc/ivyrun COMPONENT ivyrun FILES_MATCHING PATTERN "*.md"
  PATTERN "*.svg" PATTERN "*.yaml")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts/examples DESTINATION share/doc/ivyrun COMPONENT ivyrun
  PATTERN __pycache__ EXCLUDE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/scripts/slurm DESTINATION share/doc/ivyrun/examples COMPONENT ivyrun
  FILES_MATCHING PATTERN "*.sbatch")
install(FILES ${CMAKE_SOURCE_DIR}/scripts/systemd/agent-alice.conf.example
  ${CMAKE_SOURCE_DIR}/scripts/systemd/ivy-agent@.service.d/10-credentials.conf.example
  DESTINATION share/doc/ivyrun/examples/systemd COMPONENT ivyrun)
if(NOT CMAKE_CROSSCOMPILING)
  # Man pages and completions, which the programs generate.
  install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/packaging/pages ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
    \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share ${PROJECT_VERSION} COMMAND_ERROR_IS_FATAL ANY)
  # Pages of docs/ that the programs print.
  set(ENV{IVY_BIN} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/docs pages
    \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/ivyrun/docs COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ivyrun)
endif()
