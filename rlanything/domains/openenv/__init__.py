"""Any environment that an OpenEnv server plays."""
