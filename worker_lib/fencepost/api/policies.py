def policies():
    return []
